"""The prefix tree of a group's rollouts: where they go the same way, and where they part.

A node is a token together with everything the response said before it. Rollouts that reach the
same node are in the same state, so an update moves them by the same amount; the node is the unit
that is counted, not the rollout.

    right "She has 4 + 3"        nodes    She  has  4  +  3        reached by both: She has 4
    wrong "She has 4 * 3"                              *  3        the two 3 are different nodes

Counts of a node are those of the rollouts of its group that pass through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from counterpoise.types import Row


@dataclass(slots=True)
class PrefixNode:
    """One token after one prefix, in the rollouts of one prompt."""

    token: int
    num_right: int = 0  # rollouts of positive advantage
    num_wrong: int = 0


def find_nodes(rows: Sequence[Row]) -> tuple[list[PrefixNode], list[list[int]]]:
    """Every node of every group of `rows`, and for each row the indices of its nodes [T]."""
    nodes: list[PrefixNode] = []
    nodes_of_rows: list[list[int]] = []
    # A node is known by the node before it (for the first token, its group) and its token.
    index_after: dict[tuple[int | str, int], int] = {}
    for row in rows:
        previous: int | str = row.group
        row_nodes: list[int] = []
        for token in row.content.response_tokens.tolist():
            node_index = index_after.setdefault((previous, token), len(nodes))
            if node_index == len(nodes):
                nodes.append(PrefixNode(token))
            if row.sign > 0:
                nodes[node_index].num_right += 1
            else:
                nodes[node_index].num_wrong += 1
            row_nodes.append(node_index)
            previous = node_index
        nodes_of_rows.append(row_nodes)
    return nodes, nodes_of_rows
