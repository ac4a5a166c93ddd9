"""What the rollouts of a group have in common: equal tokens after equal prefixes.

A token is shared when another rollout of its group, in the same optimizer step, has the same token
after the same response prefix: both pass one node of the trie of the group's responses. There they
have one context, so one score g, and the step moves along it by g times a plain sum:

    left(node) = |sum_{i in S} A_i w_i|      gross(node) = sum_{i in S} |A_i| w_i
    residual   = sum over nodes of left / sum over nodes of gross

S: the rollouts that pass the node; A_i w_i: what the gradient multiplies the token's score by.
0: whatever is shared cancels (the exchangeability condition holds). 1: every node is one-sided.
Even a whole zero-sum group leaves something: the deeper nodes are passed by a part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterpoise.types import Row


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Sums over one step, so that steps can be pooled.

    Example:
        SharedPrefixes(of=114, tokens=40, both=31, left=6.2, gross=38.0)   # residual 0.16
    """

    step_tokens: int  # tokens of the step
    shared_tokens: int  # those shared
    two_sided_tokens: int  # those shared by positive and negative rollouts
    net_pull: float
    gross_pull: float

    @property
    def residual(self) -> float | None:
        """None when nothing that pulls is shared."""
        return self.net_pull / self.gross_pull if self.gross_pull else None


def measure_shared_prefixes(
    rows: Sequence[Row],
    pulls: Sequence[NDArray[np.floating]] | None = None,
    node_N: NDArray[np.int64] | None = None,
) -> SharedPrefixes:
    """Of the rows of one step; `pulls` [T] a row are the signed weights A w, by default A.

    `node_N`: the rows' `nodes`, where they are known.
    """
    node_N = trie_nodes(rows) if node_N is None else node_N
    parts = [row.advantages_T for row in rows] if pulls is None else pulls
    pull_N = np.concatenate(parts).astype(np.float64) if len(rows) else np.empty(0)
    if pull_N.shape != node_N.shape:
        raise ValueError(f"{len(pull_N)} pulls for {len(node_N)} tokens: one is needed for each")
    sign_N = np.repeat([row.sign for row in rows], [row.num_tokens for row in rows])
    in_N = node_N >= 0
    node, pull, sign = node_N[in_N], pull_N[in_N], sign_N[in_N]
    made = int(node.max(initial=-1)) + 1
    both = (np.bincount(node[sign > 0], minlength=made) > 0) & (
        np.bincount(node[sign < 0], minlength=made) > 0
    )
    return SharedPrefixes(
        step_tokens=len(node_N),
        shared_tokens=len(node),
        two_sided_tokens=int(both[node].sum()),
        net_pull=float(np.abs(np.bincount(node, weights=pull)).sum()),
        gross_pull=float(np.abs(pull).sum()),
    )


def exchangeability_residual(
    rows: Sequence[Row], pulls: Sequence[NDArray[np.floating]] | None = None
) -> float | None:
    """What is left of the pull on shared tokens; see `Shared.exchangeability_residual`."""
    return measure_shared_prefixes(rows, pulls).residual


def trie_nodes(rows: Sequence[Row]) -> NDArray[np.int64]:
    """The trie node of every token, row after row: [N]; -1 where no second rollout passes it.

    All rollouts walk down together, a position at a time; one that is alone in its node leaves the
    walk, so it ends at the longest shared prefix.
    """
    lengths_R = np.array([row.num_tokens for row in rows], dtype=np.int64)
    start_R = np.cumsum(lengths_R) - lengths_R
    token_N = (
        np.concatenate([row.content.response_tokens for row in rows]).astype(np.int64)
        if len(rows)
        else np.empty(0, np.int64)
    )
    node_N = np.full(len(token_N), -1, dtype=np.int64)
    types = int(token_N.max(initial=0)) + 1
    number: dict[str, int] = {}
    at_R = np.array([number.setdefault(row.group, len(number)) for row in rows], dtype=np.int64)
    walking = np.arange(len(rows))
    made = position = 0
    while len(walking := walking[lengths_R[walking] > position]):
        place = start_R[walking] + position
        _, child, passing = np.unique(
            at_R[walking] * types + token_N[place], return_inverse=True, return_counts=True
        )
        together = passing[child] > 1
        walking = walking[together]
        at_R[walking] = child[together]
        node_N[place[together]] = made + child[together]
        made += len(passing)
        position += 1
    return node_N
