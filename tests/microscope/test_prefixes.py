"""Shared prefixes: hand-made tries, and a slow dictionary of prefixes as reference."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from counterpoise.microscope.learning_tax import solution_drift, tax_tokens
from counterpoise.microscope.prefixes import (
    exchangeability_residual,
    measure_shared_prefixes,
    trie_nodes,
)
from counterpoise.types import Rollout, Row, Turn


def row(group: str, advantage: float, tokens: list[int]) -> Row:
    response = np.array(tokens, dtype=np.int32)
    rollout = Rollout(group, group, "", "", 0.0, response[:1], response, np.zeros(len(tokens)))
    return Row(group, advantage, len(tokens), rollout=rollout)


def test_identical_rollouts_of_opposite_sign_cancel() -> None:
    rows = [row("a", 1.0, [5, 6, 7]), row("a", -1.0, [5, 6, 7])]
    found = measure_shared_prefixes(rows)
    assert (found.step_tokens, found.shared_tokens) == (6, 6)
    assert exchangeability_residual(rows) == 0.0
    assert measure_shared_prefixes(rows).shared_tokens == measure_shared_prefixes(rows).step_tokens


def test_one_sign_alone_is_one_sided() -> None:
    rows = [row("a", 1.0, [5, 6]), row("a", 0.5, [5, 6])]
    assert exchangeability_residual(rows) == 1.0


def test_partial_sharing_by_hand() -> None:
    """5 is shared by three (1 + 1 - 2 = 0), 6 by two positives (2 of 2), the rest by none."""
    rows = [row("a", 1.0, [5, 6, 1]), row("a", 1.0, [5, 6, 2]), row("a", -2.0, [5, 7, 2])]
    found = measure_shared_prefixes(rows)
    assert (found.step_tokens, found.shared_tokens) == (9, 5)
    assert (found.net_pull, found.gross_pull) == (2.0, 6.0)
    assert exchangeability_residual(rows) == pytest.approx(1 / 3)
    np.testing.assert_array_equal(trie_nodes(rows) >= 0, [1, 1, 0, 1, 1, 0, 1, 0, 0])


def test_an_equal_token_after_another_prefix_is_not_shared() -> None:
    rows = [row("a", 1.0, [5, 9]), row("a", -1.0, [6, 9])]
    assert measure_shared_prefixes(rows).shared_tokens == 0
    assert exchangeability_residual(rows) is None


def test_other_groups_share_nothing() -> None:
    rows = [row("a", 1.0, [5, 6]), row("b", -1.0, [5, 6])]
    assert measure_shared_prefixes(rows).shared_tokens == 0


def test_single_tokens_and_a_prefix_of_another_response() -> None:
    rows = [row("a", 1.0, [5]), row("a", -1.0, [5, 6]), row("a", -1.0, [6])]
    found = measure_shared_prefixes(rows)
    assert (found.shared_tokens, found.net_pull, found.gross_pull) == (2, 0.0, 2.0)


def test_lone_rollouts_and_no_rows() -> None:
    assert exchangeability_residual([row("a", 1.0, [5, 6])]) is None
    assert measure_shared_prefixes([]).step_tokens == measure_shared_prefixes([]).shared_tokens == 0
    assert exchangeability_residual([]) is None


def test_pulls_are_what_the_gradient_multiplies_scores_by() -> None:
    """The clip took the second token of the positive rollout: nothing answers the other's pull."""
    rows = [row("a", 1.0, [5, 6]), row("a", -1.0, [5, 6])]
    pulls = [np.array([0.5, 0.0]), np.array([-0.5, -0.5])]
    assert exchangeability_residual(rows, pulls) == pytest.approx(0.5 / 1.5)


def test_nothing_pulls_nothing_is_left() -> None:
    rows = [row("a", 0.0, [5]), row("a", 0.0, [5])]
    assert measure_shared_prefixes(rows).shared_tokens == measure_shared_prefixes(rows).step_tokens
    assert exchangeability_residual(rows) is None


def test_pulls_must_fit() -> None:
    with pytest.raises(ValueError, match="3 pulls for 2 tokens"):
        exchangeability_residual([row("a", 1.0, [5, 6])], [np.ones(3)])


@pytest.mark.parametrize("seed", range(5))
def test_like_a_dictionary_of_prefixes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [
        row(f"g{rng.integers(4)}", rng.normal(), rng.integers(3, size=rng.integers(1, 9)).tolist())
        for _ in range(40)
    ]
    passing = defaultdict(list)
    for r in rows:
        tokens = tuple(r.content.response_tokens.tolist())
        for t in range(len(tokens)):
            passing[r.group, tokens[: t + 1]].append(r.advantage)
    together = [pulls for pulls in passing.values() if len(pulls) > 1]
    found = measure_shared_prefixes(rows)
    assert found.step_tokens == sum(len(p) for p in passing.values())
    assert found.shared_tokens == sum(map(len, together))
    assert found.net_pull == pytest.approx(sum(abs(sum(p)) for p in together), rel=1e-5)
    assert found.gross_pull == pytest.approx(sum(sum(map(abs, p)) for p in together), rel=1e-5)


def test_nodes_of_lone_rollouts_are_not_shared() -> None:
    """Nodes that one rollout passes alone are numbered too: there are more than shared tokens."""
    lonely = [row("a", 1.0, [first, 1]) for first in range(2, 9)]
    found = measure_shared_prefixes([*lonely, row("b", 1.0, [3, 4]), row("b", 1.0, [3, 5])])
    assert found.shared_tokens == 2


def test_an_environment_that_says_something_else_ends_the_shared_prefix() -> None:
    """Equal tokens after other observations have another context, and another distribution."""

    def episode(advantage: float, *observation: int) -> Row:
        made = row("a", advantage, [5, 6, 7, 8])
        told = np.array(observation, np.int32)
        turns = (Turn(0, told[:0], (0, 2), "no"), Turn(2, told, (2, 4), "no"))
        return replace(made, rollout=replace(made.content, turns=turns))

    rows = [episode(1.0, 20, 21), episode(-1.0, 20, 22), episode(1.0, 20, 21)]
    np.testing.assert_array_equal(
        trie_nodes(rows).reshape(3, 4) >= 0, [[1] * 4, [1, 1, 0, 0], [1] * 4]
    )
    assert exchangeability_residual(rows[:2]) == 0.0
    assert tax_tokens(rows, trie_nodes(rows)).tolist() == [0, 1]  # of both signs: before the reply
    # D of two right responses is the same only if all that they were told is.
    displacement = [np.full(4, delta, np.float32) for delta in (0.1, 0.0, 0.3)]
    right = [replace(rows[0]), episode(1.0, 20, 22), rows[2]]
    drift = solution_drift(right, displacement)
    assert drift.terms == 1
    assert drift.total == pytest.approx(1.2)
