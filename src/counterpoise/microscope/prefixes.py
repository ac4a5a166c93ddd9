"""The exchangeability residual: how far the pulls of a group cancel on the tokens they share.

A token is shared when another rollout of its group, in the same optimizer step, has the same token
after the same response prefix: both pass one node of the trie of the group's responses. They have
the same context there, so the same score g, and the step moves along g times a plain sum:

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
            step_tokens=114, shared_tokens=40, two_sided_tokens=31, net_pull=6.2, gross_pull=38.0
        )   # residual 0.16
    """

    step_tokens: int  # all tokens of the step
    shared_tokens: int  # tokens that another rollout of the group shares
    two_sided_tokens: int  # tokens shared by positive and negative rollouts
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

    `pulls` are the signed weights A w of each row [T], by default A; `node_N` is `trie_nodes(rows)`
    where it is already known.
    """
    node_N = trie_nodes(rows) if node_N is None else node_N
    pulls_by_row = [row.advantages_T for row in rows] if pulls is None else pulls
    pull_N = np.concatenate(pulls_by_row).astype(np.float64) if len(rows) else np.empty(0)
    if pull_N.shape != node_N.shape:
        raise ValueError(f"{len(pull_N)} pulls for {len(node_N)} tokens: one is needed for each")
    sign_N = np.repeat([row.sign for row in rows], [row.num_tokens for row in rows])
    is_shared_N = node_N >= 0
    shared_node, shared_pull = node_N[is_shared_N], pull_N[is_shared_N]
    shared_sign = sign_N[is_shared_N]
    num_nodes = int(shared_node.max(initial=-1)) + 1
    two_sided = (np.bincount(shared_node[shared_sign > 0], minlength=num_nodes) > 0) & (
        np.bincount(shared_node[shared_sign < 0], minlength=num_nodes) > 0
    )
    return SharedPrefixes(
        step_tokens=len(node_N),
        shared_tokens=len(shared_node),
        two_sided_tokens=int(two_sided[shared_node].sum()),
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
    token_N = (
        np.concatenate([row.content.response_tokens for row in rows]).astype(np.int64)
        if len(rows)
        else np.empty(0, np.int64)
    )
    node_N = np.full(len(token_N), -1, dtype=np.int64)
    num_types = int(token_N.max(initial=0)) + 1
    state_R = np.array(number_groups(rows)[0], dtype=np.int64)
    active = np.arange(len(rows))
    num_nodes = position = 0
    while len(active := active[lengths_R[active] > position]):
        # (node of the parent, token) names a child. Numbers are only unique within one position,
        # so `num_nodes` is added before they are stored.
        token_index = start_R[active] + position
        _, child_node, rollouts_passing = np.unique(
            state_R[active] * num_types + token_N[token_index],
            return_inverse=True,
            return_counts=True,
        )
        is_shared = rollouts_passing[child_node] > 1
        active = active[is_shared]
        state_R[active] = child_node[is_shared]
        node_N[token_index[is_shared]] = num_nodes + child_node[is_shared]
        num_nodes += len(rollouts_passing)
        position += 1
    return node_N
