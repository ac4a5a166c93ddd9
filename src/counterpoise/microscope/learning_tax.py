"""What an update does where it should do nothing: the learning tax, and drift between answers.

    tax     mean of KL(pi_new || pi_old) over the places that right and wrong rollouts of a query
            share: their signals oppose each other there, and what is left is no one's wish
    drift   mean of |D_a - D_b| over pairs of distinct successful responses of a query, with
            D = log pi_new(y) - log pi_old(y): both are right, so their odds need not move

A place is a token with its context (`microscope/prefixes.py`); its distribution is that of all
rollouts that pass it, so one of them stands for all. arXiv:2604.13088, section 3; averages over a
step are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.types import Floats, Row

MAX_TAX_TOKENS = 512  # looked at in a step, spread evenly: [PLACES, V] numbers wait for the update


class PooledMean(NamedTuple):
    """A sum and how many it is over, so that steps can be pooled."""

    total: float
    terms: int


def tax_tokens(
    rows: Sequence[Row], node_N: NDArray[np.int64], limit: int = MAX_TAX_TOKENS
) -> NDArray[np.int64]:
    """A token [n] for each node that rows of both signs pass; `node_N` by `prefixes.nodes`."""
    sign_N = np.repeat([row.sign for row in rows], [row.num_tokens for row in rows])
    positive, negative = (np.unique(node_N[(node_N >= 0) & (sign_N == s)]) for s in (1, -1))
    both = np.intersect1d(positive, negative, assume_unique=True)
    nodes, first = np.unique(node_N, return_index=True)
    found: NDArray[np.int64] = first[np.searchsorted(nodes, both)]
    return found[np.linspace(0, len(found) - 1, min(limit, len(found))).astype(np.int64)]


def log_distributions(hidden_UD: Tensor, W: Tensor) -> Tensor:
    """[U, V], in float32 or wider."""
    wide = torch.promote_types(hidden_UD.dtype, torch.float32)
    return torch.log_softmax((hidden_UD.to(W.dtype) @ W.mT).to(wide), dim=-1)


def learning_tax(old_UV: Tensor, new_UV: Tensor) -> PooledMean:
    """Of log-distributions at the same places, before and after."""
    kl_U = (new_UV.exp() * (new_UV - old_UV)).sum(dim=-1)
    return PooledMean(float(kl_U.double().sum()), len(kl_U))


def solution_drift(rows: Sequence[Row], displacement: Sequence[Floats]) -> PooledMean:
    """Rows of one step, and how far each of their tokens [T] moved."""
    answers: dict[str, dict[bytes, float]] = {}
    for row, moved_T in zip(rows, displacement, strict=True):
        if row.sign > 0:
            text = row.content.response_tokens.tobytes()
            answers.setdefault(row.group, {})[text] = float(np.sum(moved_T, dtype=np.float64))
    total, over = 0.0, 0
    for found in answers.values():
        D_a = np.array(list(found.values()))
        total += float(np.abs(D_a[:, None] - D_a).sum()) / 2
        over += len(D_a) * (len(D_a) - 1) // 2
    return PooledMean(total, over)
