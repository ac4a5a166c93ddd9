"""The gradient of eq. 2 over chosen tokens, and log-probabilities after a change of the weights.

    J_S = (1 / N) sum_{k in S} A_k log pi(o_k)       N counts every token of the batch, in S or not

so the gradient of a batch without the tokens M is grad J - grad J_M. For grad J_M only the rows
that hold tokens of M are run, each cut after its last one: later tokens cannot influence it.

The weights themselves are never written: a forward pass gets changed copies instead, so there is
nothing to restore.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from counterpoise.errors import PoiseError
from counterpoise.microscope.batch_tokens import check_rows
from counterpoise.model.load import Policy
from counterpoise.model.scoring import forward, micro_batches
from counterpoise.model.swapped_weights import (
    WeightDirection,
    forward_with_weights,
    trained_parameters,
)
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
    # In float64 until the pass: a division by N in float32 would be rounded once more.
    weights_N = np.concatenate([row.advantages_T for row in rows]).astype(np.float64) / num_tokens
    if chosen is not None:
        is_chosen = np.zeros(num_tokens, dtype=bool)
        is_chosen[chosen.cpu().numpy()] = True
        weights_N = weights_N * is_chosen
    # Skip rows without a chosen token, and cut the others after their last one.
    cut_rows, cut_weights = [], []
    row_ends = np.cumsum([row.num_tokens for row in rows])
    for row, weights_T in zip(rows, np.split(weights_N, row_ends[:-1]), strict=True):
        if len(nonzero := np.flatnonzero(weights_T)):
            length = int(nonzero[-1]) + 1
            cut_rows.append(row.truncate(length))
            cut_weights.append(weights_T[:length])
    weightings = {"objective": cut_weights}
    return weighted_score_sums(
        policy, cut_rows, weightings, temperature=temperature, micro_tokens=micro_tokens
    )["objective"]


def weighted_score_sums(
    policy: Policy,
    rows: Sequence[Row],
    weightings: Mapping[str, Sequence[ArrayLike]],
    *,
    temperature: float = 1.0,
    micro_tokens: int = 8192,
) -> dict[str, dict[str, Tensor]]:
    """sum_it w_it grad log pi(o_it) for several named weightings of the tokens.

    Weights are a number or [T] for each row. One forward pass serves all weightings. Parameters
    that are not trained, such as those below a LoRA adapter, have no entry.
    """
    # Sums over many micro-batches are kept in float32: bfloat16 would lose small contributions.
    names, parameters = zip(*trained_parameters(policy.model), strict=True)
    totals = {
        weighting: [
            torch.zeros_like(parameter, dtype=_accumulation_dtype(parameter.dtype))
            for parameter in parameters
        ]
        for weighting in weightings
    }
    for batch in micro_batches(rows, micro_tokens):
        logprobs_M = forward(policy, [rows[index] for index in batch], temperature).logprobs_M
        for weighting, weights in weightings.items():
            weights_M = np.concatenate(
                [np.broadcast_to(weights[index], rows[index].num_tokens) for index in batch]
            )
            objective = (torch.from_numpy(weights_M).to(logprobs_M) * logprobs_M).sum()
            # The graph is kept for the next weighting and freed with the micro-batch.
            gradients = torch.autograd.grad(
                objective, parameters, allow_unused=True, retain_graph=True
            )
            for accumulated, gradient in zip(totals[weighting], gradients, strict=True):
                if gradient is not None:
                    accumulated += gradient
    return {
        weighting: dict(zip(names, gradients, strict=True))
        for weighting, gradients in totals.items()
    }


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
    cut_row = row.truncate(position + 1)
    changed_weights = {
        name: parameter.double() + change[name].double() if name in change else parameter.double()
        for name, parameter in policy.model.named_parameters()
    }
    return float(
        forward_with_weights(policy, changed_weights, [cut_row], temperature).logprobs_M[-1]
    )


def _accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
