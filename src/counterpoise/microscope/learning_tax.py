"""Unwanted change of the policy in an update: the learning tax, and drift between right answers.

    learning tax   how much the policy changes at tokens that right and wrong rollouts of a query
                   share, where their signals oppose each other and no change is wanted: the mean
                   of KL(pi_new || pi_old) over these tokens
    drift          mean of |D_a - D_b| over pairs of distinct right responses of a query, with
                   D = log pi_new(y) - log pi_old(y): both are right, so their odds need not move

A shared token is a node of the trie of responses (`microscope/prefixes.py`). All rollouts that pass
a node have the same context and so the same distribution: one token stands for all of them.
Right and wrong mean A > 0 and A < 0 here, whatever the rewards are.

arXiv:2604.13088, section 3; the averages over a step are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.microscope.displacement import EPSILON
from counterpoise.model.head import cap_logits
from counterpoise.types import Floats, Row

ResponseKey = tuple[object, ...]
MAX_TAX_TOKENS = 512  # of a step, spread evenly: [tokens, V] numbers are kept during the update


class PooledMean(NamedTuple):
    """A sum and its number of terms, so that means of several steps can be pooled."""

    total: float
    terms: int


def tax_tokens(
    rows: Sequence[Row], node_N: NDArray[np.int64], limit: int = MAX_TAX_TOKENS
) -> NDArray[np.int64]:
    """One token index for each node that rows of both signs pass: [n], at most `limit`.

    `node_N` comes from `prefixes.trie_nodes`.
    """
    sign_N = np.repeat([row.sign for row in rows], [row.num_tokens for row in rows])
    positive, negative = (np.unique(node_N[(node_N >= 0) & (sign_N == sign)]) for sign in (1, -1))
    two_sided = np.intersect1d(positive, negative, assume_unique=True)
    # Any token of a node will do: they have one context, and so one distribution.
    nodes, first_index = np.unique(node_N, return_index=True)
    representatives: NDArray[np.int64] = first_index[np.searchsorted(nodes, two_sided)]
    return representatives[
        np.linspace(0, len(representatives) - 1, min(limit, len(representatives))).astype(np.int64)
    ]


def log_distributions(hidden_UD: Tensor, W: Tensor, softcap: float = 0.0) -> Tensor:
    """Log-distributions [U, V] at some tokens, in float32 or wider."""
    sum_dtype = torch.promote_types(hidden_UD.dtype, torch.float32)
    logits = cap_logits(hidden_UD.to(W.dtype) @ W.mT, softcap)
    return torch.log_softmax(logits.to(sum_dtype), dim=-1)


def learning_tax(old_UV: Tensor, new_UV: Tensor) -> PooledMean:
    """Sum of KL(new || old) over the same tokens, from log-distributions [U, V]."""
    kl_U = (new_UV.exp() * (new_UV - old_UV)).sum(dim=-1)
    return PooledMean(float(kl_U.double().sum()), len(kl_U))


def solution_drift(rows: Sequence[Row], displacement: Sequence[Floats]) -> PooledMean:
    """Drift between the answers with A > 0 of each query, from the displacement of their tokens."""
    # Equal responses of a query have the same D, so they are counted once. In an episode the
    # environment's observations must be equal too.
    answers: dict[str, dict[ResponseKey, float]] = {}
    for row, delta_T in zip(rows, displacement, strict=True):
        if row.sign > 0:
            content = row.content
            response = (
                content.response_tokens.tobytes(),
                *((start, tokens.tobytes()) for start, tokens in content.observations),
            )
            answers.setdefault(row.group, {})[response] = float(np.sum(delta_T, dtype=np.float64))
    total_drift, num_pairs = 0.0, 0
    for deltas in answers.values():
        D_a = np.array(list(deltas.values()))
        total_drift += float(np.abs(D_a[:, None] - D_a).sum()) / 2
        num_pairs += len(D_a) * (len(D_a) - 1) // 2
    return PooledMean(total_drift, num_pairs)


def lazy_likelihood(rows: Sequence[Row], displacement: Sequence[Floats]) -> PooledMean:
    """Rollouts with A > 0 whose own log-probability did not rise: sum_t delta_t < eps.

    Lazy likelihood displacement, arXiv:2505.18830: the push of other rollouts outweighs their own.
    """
    changes = [
        float(np.sum(delta_T, dtype=np.float64))
        for row, delta_T in zip(rows, displacement, strict=True)
        if row.sign > 0
    ]
    return PooledMean(float(sum(change < EPSILON for change in changes)), len(changes))
