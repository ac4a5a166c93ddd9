"""The exchangeability residual: how far the pulls of a group cancel on the tokens they share.

A token is shared when another rollout of its group, in the same optimizer step, has the same token
after the same response prefix: both pass one node of the trie of the group's responses. In an
episode what the environment said before the token belongs to the prefix. Rollouts that share a
token have the same context there, so the same score g = grad log pi, and the step moves along g
times a plain sum:

    net(node)   = |sum_{i in S} A_i w_i|      gross(node) = sum_{i in S} |A_i| w_i
    residual    = sum over nodes of net / sum over nodes of gross

S: the rollouts that pass the node; A_i w_i: the factor of the token's score in the gradient.
0: the pulls on shared tokens cancel (the exchangeability condition holds). 1: every node is
one-sided. Even a whole zero-sum group has a residual, as not all its rollouts pass deeper nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterpoise.types import Row, number_groups


@dataclass(frozen=True, slots=True)
class SharedPrefixes:
    """Counts and pulls of the shared tokens of one step; sums, so that steps can be pooled.

    Example:
        SharedPrefixes(
            step_tokens=114, shared_tokens=40, net_pull=6.2, gross_pull=38.0
        )   # residual 0.16
    """

    step_tokens: int  # all tokens of the step
    shared_tokens: int  # tokens that another rollout of the group shares
    net_pull: float
    gross_pull: float

    @property
    def residual(self) -> float | None:
        """net / gross; None when no shared token has a pull."""
        return self.net_pull / self.gross_pull if self.gross_pull else None


def measure_shared_prefixes(
    rows: Sequence[Row],
    pulls: Sequence[NDArray[np.floating]] | None = None,
    node_N: NDArray[np.int64] | None = None,
) -> SharedPrefixes:
    """Counts and pulls of the shared tokens of one step's rows.

    `pulls` are the signed weights A w of each row [T], by default its `advantages_T`; `node_N` is
    `trie_nodes(rows)` where it is already known.
    """
    node_N = trie_nodes(rows) if node_N is None else node_N
    pulls_by_row = [row.advantages_T for row in rows] if pulls is None else pulls
    pull_N = np.concatenate(pulls_by_row).astype(np.float64) if len(rows) else np.empty(0)
    if pull_N.shape != node_N.shape:
        raise ValueError(f"{len(pull_N)} pulls for {len(node_N)} tokens: one is needed for each")
    is_shared_N = node_N >= 0
    shared_node, shared_pull = node_N[is_shared_N], pull_N[is_shared_N]
    return SharedPrefixes(
        step_tokens=len(node_N),
        shared_tokens=len(shared_node),
        net_pull=float(np.abs(np.bincount(shared_node, weights=shared_pull)).sum()),
        gross_pull=float(np.abs(shared_pull).sum()),
    )


def exchangeability_residual(
    rows: Sequence[Row], pulls: Sequence[NDArray[np.floating]] | None = None
) -> float | None:
    """The share of the pull on shared tokens that does not cancel (`SharedPrefixes.residual`)."""
    return measure_shared_prefixes(rows, pulls).residual


def trie_nodes(rows: Sequence[Row]) -> NDArray[np.int64]:
    """The trie node of every token, row after row: [N]; -1 where no second rollout passes it.

    All rollouts walk down the trie together, one position at a time. A rollout that is alone in its
    node leaves the walk, so the walk ends at the longest shared prefix.
    """
    lengths_R = np.array([row.num_tokens for row in rows], dtype=np.int64)
    start_R = np.cumsum(lengths_R) - lengths_R
    edge_N = _trie_edges(rows)
    node_N = np.full(len(edge_N), -1, dtype=np.int64)
    num_edges = int(edge_N.max(initial=0)) + 1
    # Where each row is in the trie: first its group, then its node, numbered within one position.
    place_R = np.array(number_groups(rows)[0], dtype=np.int64)
    walking = np.arange(len(rows))
    num_nodes = 0
    for position in range(int(lengths_R.max(initial=0))):
        walking = walking[lengths_R[walking] > position]
        if not len(walking):
            break
        # (parent, edge from it) names a child.
        token_index = start_R[walking] + position
        _, child_node, rollouts_passing = np.unique(
            place_R[walking] * num_edges + edge_N[token_index],
            return_inverse=True,
            return_counts=True,
        )
        is_shared = rollouts_passing[child_node] > 1
        walking = walking[is_shared]
        place_R[walking] = child_node[is_shared]
        node_N[token_index[is_shared]] = num_nodes + child_node[is_shared]
        num_nodes += len(rollouts_passing)
    return node_N


def _trie_edges(rows: Sequence[Row]) -> NDArray[np.int64]:
    """The label [N] of the trie's edge that each token follows.

    Two tokens have the same label if they are equal and the environment said the same, or nothing,
    just before them.
    """
    if not rows:
        return np.empty(0, np.int64)
    edge_N = np.concatenate([row.content.response_tokens for row in rows]).astype(np.int64)
    num_types = int(edge_N.max(initial=0)) + 1
    observation_numbers: dict[bytes, int] = {}
    row_start = 0
    for row in rows:
        for position, observation in row.content.observations:
            number = observation_numbers.setdefault(
                observation.tobytes(), len(observation_numbers) + 1
            )
            edge_N[row_start + position] += number * num_types
        row_start += row.num_tokens
    return edge_N
