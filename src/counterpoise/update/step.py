"""One optimizer step: the rows of one step of a plan -> gradient -> new weights.

    L = sum_i c_i sum_t L_{i,t}        L_{i,t} by the surrogate, c_i by the aggregation

Rows are walked in micro-batches for memory's sake; c_i knows the whole step, so the gradient is
the same for every way of cutting it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from counterpoise.config import UpdateConfig
from counterpoise.policy.load import Policy
from counterpoise.types import Floats, Row, StepResult
from counterpoise.update import AGGREGATIONS, SURROGATES
from counterpoise.update.forward import forward, micro_batches
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.surrogate import SurrogateInputs


class Look(Protocol):
    """Someone who watches a step: `microscope/monitor.py`."""

    def before(self, policy: Policy, rows: Sequence[Row], result: StepResult) -> None: ...

    def after(self, policy: Policy) -> None: ...


def accumulate(
    policy: Policy,
    rows: Sequence[Row],
    config: UpdateConfig,
    *,
    temperature: float,
    max_new_tokens: int,
    keep_hidden: bool = False,
) -> StepResult:
    """Add the gradient of the step's loss to the weights' `.grad`; report every token it used."""
    surrogate = SURROGATES.load(config.surrogate)
    coefficients_R = AGGREGATIONS.load(config.aggregate)(rows, max_new_tokens)
    signal = [i for i, row in enumerate(rows) if np.any(row.advantages_T)]
    used = [rows[i] for i in signal]
    logprobs: dict[int, Floats] = {}
    entropies: dict[int, Floats] = {}
    pulls: dict[int, Floats] = {}
    hidden: dict[int, torch.Tensor] = {}
    loss, clipped = 0.0, 0
    for batch in micro_batches(used, config.micro_tokens):
        members = [used[i] for i in batch]
        result = forward(policy, members, temperature)
        result.logprobs_M.retain_grad()
        inputs = _inputs(members, result.logprobs_M, config)
        outputs = surrogate(inputs)
        weights = torch.tensor(coefficients_R[[signal[i] for i in batch]], device=policy.device)
        total = (outputs.loss * weights.to(outputs.loss.dtype)[inputs.row]).sum()
        total.backward()
        loss += float(total.detach())
        clipped += int(outputs.clipped.sum())
        logprobs.update(zip(batch, result.by_row(result.logprobs_M), strict=True))
        entropies.update(zip(batch, result.by_row(result.entropies_M), strict=True))
        assert result.logprobs_M.grad is not None  # retained above
        pulls.update(zip(batch, result.by_row(-result.logprobs_M.grad), strict=True))
        if keep_hidden:
            parts = result.hidden_M.detach().split(result.lengths)
            hidden.update(zip(batch, parts, strict=True))
    return StepResult(
        rows=tuple(signal),
        logprobs=[logprobs[i] for i in range(len(used))],
        old_logprobs=[row.old_logprobs for row in used],
        advantages=[row.advantages_T for row in used],
        entropies=[entropies[i] for i in range(len(used))],
        pulls=[pulls[i] for i in range(len(used))],
        coefficients=coefficients_R[signal].astype(np.float32),
        loss=loss,
        grad_norm=math.nan,
        clipped_share=clipped / max(1, sum(row.num_tokens for row in used)),
        tokens=sum(row.num_tokens for row in rows),
        skipped="" if used else "no signal",
        hidden=[hidden[i] for i in range(len(hidden))],
    )


def take_step(
    policy: Policy,
    optimizer: Optimizer,
    rows: Sequence[Row],
    config: UpdateConfig,
    *,
    temperature: float,
    max_new_tokens: int,
    look: Look | None = None,
) -> StepResult:
    """`accumulate`, then update, unless there is no signal or something is not finite.

    `look` sees the step just before the weights change, and again just after.
    """
    optimizer.zero_grad()
    result = accumulate(
        policy,
        rows,
        config,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        keep_hidden=look is not None,
    )
    if result.skipped:
        return replace(result, grad_norm=0.0)
    norm = optimizer.grad_norm()
    if not (math.isfinite(result.loss) and math.isfinite(norm)):
        optimizer.zero_grad()
        return replace(result, grad_norm=norm, skipped="not finite", hidden=())
    if look:
        look.before(policy, rows, result)
    optimizer.step(norm)
    optimizer.zero_grad()
    if look:
        look.after(policy)
    return replace(result, grad_norm=norm, hidden=())


def _inputs(rows: Sequence[Row], logprobs_M: torch.Tensor, config: UpdateConfig) -> SurrogateInputs:
    device = logprobs_M.device

    def flat(parts: Sequence[Floats]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device, logprobs_M.dtype)

    lengths = torch.tensor([row.num_tokens for row in rows], device=device)
    return SurrogateInputs(
        logprobs=logprobs_M,
        old_logprobs=flat([row.old_logprobs for row in rows]),
        advantages=flat([row.advantages_T for row in rows]),
        row=torch.repeat_interleave(torch.arange(len(rows), device=device), lengths),
        num_rows=len(rows),
        clip_low=config.clip_low,
        clip_high=config.clip_high,
    )
