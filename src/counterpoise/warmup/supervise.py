"""L = -1/N sum_t log pi(solution_t | problem, solution_<t), over the tokens of worked solutions.

Simplest thing that works: AdamW, linear warm-up over 5 % of the steps, cosine decay to a tenth,
problems drawn at random. RL needs a policy that is right about half the time and unsure nearly
everywhere: task/slips.py says how word problems make one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from counterpoise.config import UpdateConfig, WarmupConfig
from counterpoise.errors import PoiseError
from counterpoise.policy.attention import PackedAttention
from counterpoise.policy.head import token_logprobs
from counterpoise.policy.load import Policy
from counterpoise.policy.packing import pack
from counterpoise.seeds import rng_for
from counterpoise.types import Ints, Prompt
from counterpoise.update.optimizer import Optimizer

Progress = Callable[[int, float], None]  # (step, loss)


def supervise(
    policy: Policy,
    prompts: Sequence[Prompt],
    config: WarmupConfig,
    seed: int,
    micro_tokens: int,
    progress: Progress = lambda step, loss: None,
) -> None:
    """Train `policy` in place on the solutions of `prompts`."""
    check_solutions(prompts)
    optimizer = Optimizer(
        policy.model,
        UpdateConfig(lr=config.lr, beta2=0.98, weight_decay=0.01, max_grad_norm=1.0),
    )
    for step in range(config.steps):
        chosen = rng_for(seed, "warmup", step).integers(len(prompts), size=config.batch)
        rows = [encode_example(policy, prompts[i]) for i in chosen]
        optimizer.zero_grad()
        loss = _backward(policy, rows, micro_tokens)
        optimizer.step(optimizer.grad_norm(), schedule(step, config.steps))
        progress(step, loss)


def check_solutions(prompts: Sequence[Prompt]) -> None:
    """Every prompt has a worked solution, or the first that has none is named."""
    for prompt in prompts:
        if not prompt.solution:
            raise PoiseError(
                f"prompt {prompt.id} has no worked solution: warm-up needs a 'solution' for each"
            )


def schedule(step: int, steps: int) -> float:
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


def encode_example(policy: Policy, prompt: Prompt) -> tuple[Ints, Ints]:
    """(prompt tokens, solution tokens with the end token)."""
    ids = policy.tokenizer.encode(prompt.solution, add_special_tokens=False)
    return policy.encode(prompt.problem), np.array(
        [*ids, policy.tokenizer.eos_token_id], dtype=np.int32
    )


def _backward(policy: Policy, rows: Sequence[tuple[Ints, Ints]], micro_tokens: int) -> float:
    total = sum(len(solution) for _, solution in rows)
    loss = 0.0
    ordered = sorted(rows, key=lambda row: len(row[0]) + len(row[1]))
    longest = max(len(a) + len(b) for a, b in rows)
    size = max(1, micro_tokens // longest)
    for start in range(0, len(ordered), size):
        part = ordered[start : start + size]
        packing = pack([a for a, _ in part], [b for _, b in part], policy.device)
        policy.decoder.reserve(packing.longest)
        hidden = policy.decoder(packing.tokens_N, packing.positions_N, PackedAttention(packing))
        logprobs, _ = token_logprobs(
            hidden[packing.predictors_M], policy.decoder.unembedding, packing.targets_M
        )
        share = -logprobs.sum() / total
        share.backward()
        loss += float(share.detach())
    return loss
