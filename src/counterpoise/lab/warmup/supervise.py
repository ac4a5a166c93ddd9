"""L = -1/N sum_t log pi(solution_t | problem, solution_<t), over the tokens of worked solutions.

Simplest thing that works: AdamW, linear warm-up over 5 % of the steps, cosine decay to a tenth,
problems drawn at random. RL needs a policy that is right about half the time and unsure nearly
everywhere: task/slips.py says how word problems make one, and `done` stops when it is there.

A solution is a row like any rollout: the same packing, passes and float32 masters as the update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch

from counterpoise.config import UpdateConfig, WarmupConfig
from counterpoise.errors import PoiseError
from counterpoise.model.fit_memory import MicroBatch
from counterpoise.model.load import Policy
from counterpoise.model.scoring import forward, micro_batches
from counterpoise.run.interrupts import postponed
from counterpoise.seeds import rng_for
from counterpoise.types import Ints, Prompt, Rollout, Row
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.repeatable import repeatable

Progress = Callable[[int, float], None]  # (steps taken, loss of the last)
ShouldStop = Callable[[int], bool]  # (steps taken) -> whether to stop here
FINISHING = "finishing the step, then a checkpoint"
SAVING = "saving a checkpoint"


class TrainingCheckpoints:
    """Who keeps the training while it goes on. This one keeps nothing; `resume.py` does."""

    def restore(self, optimizer: Optimizer) -> int:
        """The steps taken before; weights and optimizer are as they were then."""
        return 0

    def is_due(self) -> bool:
        """Whether it is time to save."""
        return False

    def save(self, optimizer: Optimizer, taken: int) -> None: ...


def supervise(
    policy: Policy,
    prompts: Sequence[Prompt],
    config: WarmupConfig,
    seed: int,
    micro: MicroBatch,
    *,
    checkpointing: bool = False,
    progress: Progress = lambda step, loss: None,
    should_stop: ShouldStop = lambda step: False,
    second_turns: Sequence[tuple[Prompt, Ints]] = (),
    checkpoints: TrainingCheckpoints | None = None,
) -> int:
    """Train `policy` in place on the solutions of `prompts`; returns the steps taken.

    `done` is asked every `config.evaluate_every` steps, and once more where a training is taken up.
    `again`: prompts to solve once more, after other tokens than their own
    (`lab/warmup/second_turns.py`). Stopped by Ctrl-C or SIGTERM, a step is finished and saved; a
    look is not finished.
    """
    check_solutions(prompts)
    checkpoints = checkpoints or TrainingCheckpoints()
    optimizer = Optimizer(
        policy.model,
        UpdateConfig(lr=config.lr, beta2=0.98, weight_decay=0.01, max_grad_norm=1.0),
    )
    first = len(prompts)
    example = cache(
        lambda i: (
            solution_row(policy, prompts[i])
            if i < first
            else solution_row(policy, *second_turns[i - first])
        )
    )
    taken, every = checkpoints.restore(optimizer), config.evaluate_every
    while True:
        try:
            if every and taken and taken % every == 0 and should_stop(taken):
                return taken
        except KeyboardInterrupt:
            with postponed(SAVING):
                checkpoints.save(optimizer, taken)
            raise
        if taken == config.steps:
            return taken
        with postponed(FINISHING) as stopped:
            chosen = rng_for(seed, "warmup", taken).integers(
                first + len(second_turns), size=config.batch
            )
            rows = [example(int(i)) for i in chosen]
            loss = take_supervised_step(
                policy, rows, optimizer, micro, taken, config.steps, checkpointing
            )
            taken += 1
            progress(taken, loss)
            if stopped() or checkpoints.is_due():
                checkpoints.save(optimizer, taken)


def take_supervised_step(
    policy: Policy,
    rows: Sequence[Row],
    optimizer: Optimizer,
    micro: MicroBatch,
    step: int,
    steps: int,
    checkpointing: bool,
) -> float:
    """Step number `step` (from 0) of `steps`; returns its loss."""

    def gradient(micro_tokens: int) -> float:
        optimizer.zero_grad()
        return backward(policy, rows, micro_tokens, checkpointing, optimizer.collect)

    with repeatable():  # a warm-up that is made again is the same start
        loss = micro.run_rows(gradient, rows)
    norm = optimizer.grad_norm()
    if not math.isfinite(loss) or not math.isfinite(norm):
        raise PoiseError(f"the loss is not finite at step {step + 1}: lower warmup.lr")
    optimizer.step(norm, learning_rate_factor(step, steps))
    return loss


def backward(
    policy: Policy,
    rows: Sequence[Row],
    micro_tokens: int,
    checkpointing: bool = False,
    after_pass: Callable[[], None] = lambda: None,
) -> float:
    """Add the gradient of L to the weights'; any cut into passes gives the same."""
    total = sum(row.num_tokens for row in rows)
    losses = []
    for batch in micro_batches(rows, micro_tokens):
        result = forward(policy, [rows[i] for i in batch], 1.0, checkpointing=checkpointing)
        loss = -result.logprobs_M.sum() / total
        loss.backward()
        after_pass()
        losses.append(loss.detach())
    return float(torch.stack(losses).sum())


def solution_row(policy: Policy, prompt: Prompt, before: Ints | None = None) -> Row:
    """A worked solution as a response, its tokens and the end token, to the prompt or `before`."""
    ids = policy.tokenizer.encode(prompt.solution, add_special_tokens=False)
    tokens = np.array([*ids, policy.tokenizer.eos_token_id], dtype=np.int32)
    rollout = Rollout(
        prompt_id=prompt.id,
        prompt=prompt.problem,
        answer=prompt.answer,
        response=prompt.solution,
        reward=1.0,
        prompt_tokens=policy.encode(prompt.problem) if before is None else before,
        response_tokens=tokens,
        sampled_logprobs=np.zeros(len(tokens), dtype=np.float32),  # nobody sampled it
    )
    group = prompt.id if before is None else f"{prompt.id} again"  # a group has one prompt
    return Row(group, advantage=1.0, num_tokens=len(tokens), rollout=rollout)


def check_solutions(prompts: Sequence[Prompt]) -> None:
    """Every prompt has a worked solution, or the first that has none is named."""
    for prompt in prompts:
        if not prompt.solution:
            raise PoiseError(
                f"prompt {prompt.id} has no worked solution: warm-up needs one for each; "
                "task.solution_field names the field"
            )


def learning_rate_factor(step: int, steps: int) -> float:
    """Share of the peak learning rate at `step`.

    Example:
        >>> schedule(0, 100), schedule(5, 100)
        (0.2, 1.0)
    """
    rise = max(1, round(0.05 * steps))
    if step < rise:
        return (step + 1) / rise
    progress = (step - rise) / max(1, steps - rise)
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress))
