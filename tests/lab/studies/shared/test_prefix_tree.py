"""Places of a group's rollouts, counted by hand."""

from __future__ import annotations

import numpy as np

from counterpoise.lab.studies.shared.prefix_tree import find_nodes
from counterpoise.types import Rollout, Row


def row(group: str, advantage: float, tokens: list[int]) -> Row:
    token_T = np.array(tokens, dtype=np.int32)
    logprobs_T = np.zeros(len(tokens), dtype=np.float32)
    rollout = Rollout("p", "", "", "", 1.0, token_T, token_T, logprobs_T)
    return Row(group, advantage, len(tokens), rollout=rollout)


def test_rollouts_share_a_place_until_they_part():
    rows = [
        row("a", 1.0, [1, 2, 3, 4]),
        row("a", -1.0, [1, 2, 5, 4]),
        row("a", 1.0, [1, 2, 3, 6]),
        row("b", -1.0, [1, 2, 3, 4]),  # another prompt: other nodes
    ]
    nodes, nodes_of_rows = find_nodes(rows)
    assert nodes_of_rows == [[0, 1, 2, 3], [0, 1, 4, 5], [0, 1, 2, 6], [7, 8, 9, 10]]
    counts = [(node.token, node.num_right, node.num_wrong) for node in nodes]
    assert counts[:7] == [
        (1, 2, 1),
        (2, 2, 1),
        (3, 2, 0),
        (4, 1, 0),
        (5, 0, 1),
        (4, 0, 1),
        (6, 1, 0),
    ]
    assert counts[7:] == [(1, 0, 1), (2, 0, 1), (3, 0, 1), (4, 0, 1)]


def test_a_token_that_repeats_is_another_place_each_time():
    nodes, nodes_of_rows = find_nodes([row("a", 1.0, [7, 7, 7]), row("a", -1.0, [7, 7])])
    assert nodes_of_rows == [[0, 1, 2], [0, 1]]
    assert [(node.num_right, node.num_wrong) for node in nodes] == [(1, 1), (1, 1), (1, 0)]
