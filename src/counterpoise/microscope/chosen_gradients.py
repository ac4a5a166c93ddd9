"""Eq. 2 over chosen tokens: its gradient, and log-probabilities a step away from the weights.

    J_S = (1 / N) sum_{k in S} A_k log pi(o_k)       N counts every token of the batch, in S or not

so the gradient of a batch without the tokens M is grad J - grad J_M. For grad J_M only the rows
that hold tokens of M are run, each cut after its last one: what follows a token cannot reach it.

The weights themselves are never written to: a pass is lent others, so there is nothing to restore.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from counterpoise.errors import PoiseError
from counterpoise.microscope.batch_tokens import check_rows
from counterpoise.model.load import Policy
from counterpoise.model.scoring import forward, micro_batches
from counterpoise.model.swapped_weights import Direction, forward_with
from counterpoise.types import Row


def objective_gradient(
    policy: Policy,
    rows: Sequence[Row],
    chosen: Tensor | None = None,
    *,
    temperature: float = 1.0,
    micro_tokens: int = 8192,
) -> dict[str, Tensor]:
    """grad J_S for the tokens `chosen`, as places of the flat batch [n]; None takes them all."""
    check_rows(rows)
    N = sum(row.num_tokens for row in rows)
    weights_N = torch.cat([torch.from_numpy(row.advantages_T) for row in rows])
    if chosen is not None:
        inside = torch.zeros(N)
        inside[chosen.cpu()] = 1
        weights_N = weights_N * inside
    cut, weights = [], []
    for row, weights_T in zip(rows, weights_N.split([r.num_tokens for r in rows]), strict=True):
        if len(used := weights_T.nonzero()):
            last = int(used[-1])
            cut.append(truncate_row(row, last + 1))
            weights.append(weights_T[: last + 1])

    names, parameters = zip(*policy.model.named_parameters(), strict=True)
    total = [torch.zeros_like(p, dtype=_accumulation_dtype(p.dtype)) for p in parameters]
    for batch in micro_batches(cut, micro_tokens):
        logprobs_M = forward(policy, [cut[i] for i in batch], temperature).logprobs_M
        weights_M = torch.cat([weights[i] for i in batch]).to(logprobs_M)
        parts = torch.autograd.grad(
            (weights_M * logprobs_M).sum() / N, parameters, allow_unused=True
        )
        for sum_, part in zip(total, parts, strict=True):
            if part is not None:
                sum_ += part
    return dict(zip(names, total, strict=True))


def weighted_sum(terms: Iterable[tuple[float, Direction]]) -> dict[str, Tensor]:
    """A weighted sum of directions.

    Example:
        plus([(eta, normal), (-eta, masked)])
    """
    total: dict[str, Tensor] = {}
    for factor, direction in terms:
        for name, tensor in direction.items():
            total[name] = total[name] + factor * tensor if name in total else factor * tensor
    return total


@torch.no_grad()
def logprob_after_change(
    policy: Policy, row: Row, position: int, change: Direction, *, temperature: float = 1.0
) -> float:
    """log pi of one token at weights + change, in float64: effects are differences of these."""
    if not 0 <= position < row.num_tokens:
        raise PoiseError(f"there is no token {position} in a response of {row.num_tokens}")
    short = truncate_row(row, position + 1)
    moved = {
        name: p.double() + change[name].double() if name in change else p.double()
        for name, p in policy.model.named_parameters()
    }
    return float(forward_with(policy, moved, [short], temperature).logprobs_M[-1])


def truncate_row(row: Row, length: int) -> Row:
    """The row as if its response had ended there."""
    content = row.content
    return replace(
        row,
        num_tokens=length,
        rollout=replace(
            content,
            response_tokens=content.response_tokens[:length],
            sampled_logprobs=content.sampled_logprobs[:length],
        ),
        weights_T=None if row.weights_T is None else row.weights_T[:length],
        scored_T=None if row.scored_T is None else row.scored_T[:length],
    )


def _accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
