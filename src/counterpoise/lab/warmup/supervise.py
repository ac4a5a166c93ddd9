"""Supervised training: L = -1/N sum_t log pi(solution_t | problem, solution_<t).

The simplest thing that works: AdamW, linear warm-up over 5 % of the steps, cosine decay to a tenth,
problems chosen at random. RL needs a policy that is right about half the time and unsure nearly
everywhere: task/slips.py describes how word problems produce one, and `should_stop` ends training
once it is reached.

A solution is a row like any rollout, with the same packing, passes and float32 masters as the
update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch

from counterpoise.config import UpdateConfig, WarmupConfig
from counterpoise.errors import PoiseError
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.load import Policy
from counterpoise.model.scoring import forward, micro_batches
from counterpoise.run.interrupts import postpone_interrupts
from counterpoise.seeds import rng_for
from counterpoise.types import Ints, Prompt, Rollout, Row
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.repeatable import repeatable

Progress = Callable[[int, float], None]  # (steps taken, loss of the last)
ShouldStop = Callable[[int], bool]  # (steps taken) -> whether training is done
# A problem, and the tokens that its solution follows: None means the problem itself; for a second
# turn they hold the first turn and its feedback too (`lab/warmup/second_turns.py`).
SolutionExample = tuple[Prompt, Ints | None]
FINISHING = "finishing the step, then a checkpoint"
SAVING = "saving a checkpoint"


class TrainingCheckpoints:
    """The interface for checkpoints during training. This one saves nothing; `resume.py` does."""

    def restore(self, optimizer: Optimizer) -> int:
        """Restore weights and optimizer of an earlier run; returns the steps it had taken."""
        return 0

    def is_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return False

    def save(self, optimizer: Optimizer, steps_taken: int) -> None: ...


@dataclass(frozen=True, slots=True)
class TrainingHooks:
    """Functions that are called between training steps."""

    progress: Progress = lambda step, loss: None
    should_stop: ShouldStop = lambda step: False
    checkpoints: TrainingCheckpoints = field(default_factory=TrainingCheckpoints)


def supervise(
    policy: Policy,
    examples: Sequence[SolutionExample],
    config: WarmupConfig,
    seed: int,
    micro: FittedSize,
    *,
    checkpointing: bool = False,
    hooks: TrainingHooks | None = None,
) -> int:
    """Train `policy` in place on the solutions of `examples`; returns the steps taken.

    `should_stop` is called every `config.evaluate_every` steps, and when training is resumed. On
    Ctrl-C or SIGTERM the step is finished and saved; an evaluation is not finished.
    """
    check_solutions([prompt for prompt, _ in examples])
    hooks = hooks or TrainingHooks()
    checkpoints = hooks.checkpoints
    optimizer = Optimizer(
        policy.model,
        UpdateConfig(lr=config.lr, beta2=0.98, weight_decay=0.01, max_grad_norm=1.0),
    )
    # Tokenized once: a problem is usually chosen many times.
    example_row = cache(lambda index: solution_row(policy, *examples[index]))
    steps_taken, evaluation_interval = checkpoints.restore(optimizer), config.evaluate_every
    while True:
        try:
            if (
                evaluation_interval
                and steps_taken
                and steps_taken % evaluation_interval == 0
                and hooks.should_stop(steps_taken)
            ):
                return steps_taken
        except KeyboardInterrupt:  # during an evaluation: the steps before it are kept
            with postpone_interrupts(SAVING):
                checkpoints.save(optimizer, steps_taken)
            raise
        if steps_taken == config.steps:
            return steps_taken
        with postpone_interrupts(FINISHING) as interrupts:
            # The choice depends only on the seed and the step number, so a resumed run repeats it.
            indices = rng_for(seed, "warmup", steps_taken).integers(
                len(examples), size=config.batch
            )
            rows = [example_row(int(index)) for index in indices]
            loss = take_supervised_step(
                policy, rows, optimizer, micro, steps_taken, config.steps, checkpointing
            )
            steps_taken += 1
            hooks.progress(steps_taken, loss)
            if interrupts.is_waiting() or checkpoints.is_due():
                checkpoints.save(optimizer, steps_taken)


def take_supervised_step(
    policy: Policy,
    rows: Sequence[Row],
    optimizer: Optimizer,
    micro: FittedSize,
    step: int,
    steps: int,
    checkpointing: bool,
) -> float:
    """Take step number `step` (from 0) of `steps`; returns its loss."""

    def gradient(micro_tokens: int) -> float:
        optimizer.zero_grad()
        return backward(policy, rows, micro_tokens, checkpointing, optimizer.collect_gradients)

    with repeatable():  # a repeated warm-up must give the same weights, bit for bit
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
    """Add the gradient of L to `weight.grad`; any split into micro-batches gives the same."""
    num_tokens = sum(row.num_tokens for row in rows)
    losses = []
    for batch in micro_batches(rows, micro_tokens):
        result = forward(
            policy, [rows[row_index] for row_index in batch], 1.0, checkpointing=checkpointing
        )
        loss = -result.logprobs_M.sum() / num_tokens
        loss.backward()
        after_pass()
        losses.append(loss.detach())
    return float(torch.stack(losses).sum())


def solution_row(policy: Policy, prompt: Prompt, context: Ints | None = None) -> Row:
    """A worked solution and the end token as a response to the prompt, or to `context`."""
    token_ids = policy.tokenizer.encode(prompt.solution, add_special_tokens=False)
    end_token = policy.tokenizer.eos_token_id
    tokens = policy.as_tokens(
        [*token_ids, policy.end_tokens[0] if end_token is None else end_token]
    )
    rollout = Rollout(
        prompt_id=prompt.id,
        prompt=prompt.problem,
        answer=prompt.answer,
        response=prompt.solution,
        reward=1.0,
        prompt_tokens=policy.encode(prompt) if context is None else context,
        response_tokens=tokens,
        # The solution was not sampled; nothing reads these.
        sampled_logprobs=np.zeros(len(tokens), dtype=np.float32),
    )
    # All rows of a group share one prompt, so a second turn needs a separate group.
    group = prompt.id if context is None else f"{prompt.id} again"
    return Row(group, advantage=1.0, num_tokens=len(tokens), rollout=rollout)


def check_solutions(prompts: Sequence[Prompt]) -> None:
    """Raise an error that names the first prompt without a worked solution."""
    for prompt in prompts:
        if not prompt.solution:
            raise PoiseError(
                f"prompt {prompt.id} has no worked solution: warm-up needs one for each; "
                "set task.solution_field to the field that holds it"
            )


def learning_rate_factor(step: int, steps: int) -> float:
    """The fraction of the peak learning rate at `step`.

    Example:
        >>> learning_rate_factor(0, 100), learning_rate_factor(5, 100)
        (0.2, 1.0)
    """
    rise = max(1, round(0.05 * steps))
    if step < rise:
        return (step + 1) / rise
    progress = (step - rise) / max(1, steps - rise)
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress))
