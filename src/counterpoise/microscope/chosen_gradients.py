"""The gradient of eq. 2 over chosen tokens, and log-probabilities after a change of the weights.

    J_S = (1 / N) sum_{k in S} A_k log pi(o_k)       N counts every token of the batch, in S or not

so the gradient of a batch without the tokens M is grad J - grad J_M. For grad J_M only the rows
that hold tokens of M are run, each cut after its last one: later tokens cannot influence it.

The weights themselves are never written: a forward pass gets changed copies instead, so there is
nothing to restore.
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
from counterpoise.model.swapped_weights import WeightDirection, forward_with_weights
from counterpoise.types import Row


def objective_gradient(
    policy: Policy,
    rows: Sequence[Row],
    chosen: Tensor | None = None,
    *,
    temperature: float = 1.0,
    micro_tokens: int = 8192,
) -> dict[str, Tensor]:
    """grad J_S for the tokens `chosen`, indices [n] into the flat batch; None takes all tokens."""
    check_rows(rows)
    num_tokens = sum(row.num_tokens for row in rows)
    weights_N = torch.cat([torch.from_numpy(row.advantages_T) for row in rows])
    if chosen is not None:
        is_chosen = torch.zeros(num_tokens)
        is_chosen[chosen.cpu()] = 1
        weights_N = weights_N * is_chosen
    # Skip rows without a chosen token, and cut the others after their last one.
    cut_rows, cut_weights = [], []
    for row, weights_T in zip(rows, weights_N.split([row.num_tokens for row in rows]), strict=True):
        if len(nonzero := weights_T.nonzero()):
            last_used = int(nonzero[-1])
            cut_rows.append(truncate_row(row, last_used + 1))
            cut_weights.append(weights_T[: last_used + 1])

    # Sums over many micro-batches are kept in float32: bfloat16 would lose small contributions.
    names, parameters = zip(*policy.model.named_parameters(), strict=True)
    totals = [
        torch.zeros_like(parameter, dtype=_accumulation_dtype(parameter.dtype))
        for parameter in parameters
    ]
    for batch in micro_batches(cut_rows, micro_tokens):
        logprobs_M = forward(policy, [cut_rows[index] for index in batch], temperature).logprobs_M
        weights_M = torch.cat([cut_weights[index] for index in batch]).to(logprobs_M)
        gradients = torch.autograd.grad(
            (weights_M * logprobs_M).sum() / num_tokens, parameters, allow_unused=True
        )
        for accumulated, gradient in zip(totals, gradients, strict=True):
            if gradient is not None:
                accumulated += gradient
    return dict(zip(names, totals, strict=True))


def weighted_sum(terms: Iterable[tuple[float, WeightDirection]]) -> dict[str, Tensor]:
    """A weighted sum of directions.

    Example:
        weighted_sum([(eta, normal), (-eta, masked)])
    """
    total: dict[str, Tensor] = {}
    for factor, direction in terms:
        for name, tensor in direction.items():
            total[name] = total[name] + factor * tensor if name in total else factor * tensor
    return total


@torch.no_grad()
def logprob_after_change(
    policy: Policy, row: Row, position: int, change: WeightDirection, *, temperature: float = 1.0
) -> float:
    """log pi of one token at weights + change, in float64: effects are small differences."""
    if not 0 <= position < row.num_tokens:
        raise PoiseError(f"there is no token {position} in a response of {row.num_tokens}")
    cut_row = truncate_row(row, position + 1)
    changed_weights = {
        name: parameter.double() + change[name].double() if name in change else parameter.double()
        for name, parameter in policy.model.named_parameters()
    }
    return float(
        forward_with_weights(policy, changed_weights, [cut_row], temperature).logprobs_M[-1]
    )


def truncate_row(row: Row, length: int) -> Row:
    """The row with its response cut to the first `length` tokens."""
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
        trainer_logprobs_T=None
        if row.trainer_logprobs_T is None
        else row.trainer_logprobs_T[:length],
    )


def _accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
