"""GTPO: conflicts from both ends, and the entropy of a rollout."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tiny
from one_by_one import made

from counterpoise.credit.gtpo import weights
from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.errors import PoiseError

BARE = {"penalty": 0.0, "ceiling": math.inf}  # conflicts alone: no policy is asked


def slow(rows, i: int) -> list[float]:
    """Conflict weights of row i, token by token."""
    mine, group = rows[i], [r for r in rows if r.group == rows[i].group]
    T = mine.num_tokens
    found = [1.0] * T
    for backward in (False, True):
        for n in range(T):
            t = T - 1 - n if backward else n
            signs = set()
            for other in group:
                at = other.num_tokens - 1 - n if backward else n
                tokens = other.content.response_tokens
                if 0 <= at < other.num_tokens and tokens[at] == mine.content.response_tokens[t]:
                    signs.add(other.sign)
            if signs != {1, -1}:
                break
            found[t] *= 2.0 if mine.sign > 0 else 0.0
    return found


def test_the_formula() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows = [
            made(g, i, rng.choice([-1.0, 1.0]), rng.integers(2, 4, rng.integers(1, 7)))
            for g in "ab"
            for i in range(4)
        ]
        found = weights(CreditView(rows), **BARE)
        assert [w_T.tolist() for w_T in found] == [slow(rows, i) for i in range(len(rows))]
        assert all(w_T.dtype == np.float32 for w_T in found)


def test_a_beginning_and_an_end_that_both_have() -> None:
    rows = [made("g", 0, 1.0, [7, 8, 3, 9]), made("g", 1, -1.0, [7, 8, 4, 5, 9])]
    right, wrong = weights(CreditView(rows), **BARE)
    assert right.tolist() == [2, 2, 1, 2]
    assert wrong.tolist() == [0, 0, 1, 1, 0]


def test_only_the_contiguous_run_counts() -> None:
    rows = [made("g", 0, 1.0, [7, 3, 9, 5]), made("g", 1, -1.0, [7, 4, 9, 6])]
    right, wrong = weights(
        CreditView(rows), **BARE
    )  # 9 at position 2 is shared, after a difference
    assert (right.tolist(), wrong.tolist()) == ([2, 1, 1, 1], [0, 1, 1, 1])


def test_twins_are_in_conflict_from_both_ends() -> None:
    rows = [made("g", 0, 1.0, [7, 8]), made("g", 1, -1.0, [7, 8])]
    right, wrong = weights(CreditView(rows), boost=3.0, **BARE)
    assert (right.tolist(), wrong.tolist()) == ([9, 9], [0, 0])


def test_a_run_may_be_of_different_rollouts() -> None:
    rows = [
        made("g", 0, 1.0, [1, 2, 5]), made("g", 1, -1.0, [1, 3, 6]), made("g", 2, -1.0, [4, 2, 7]),
    ]  # fmt: skip
    right, first, second = weights(CreditView(rows), **BARE)
    assert right.tolist() == [2, 2, 1]
    assert first.tolist() == [0, 1, 1]
    assert second.tolist() == [1, 1, 1]  # its 2 is shared, but its beginning is not


@pytest.mark.parametrize("advantages", [[1, 1], [-1, -1], [2]])
def test_one_sign_one_row_no_conflict(advantages: list[float]) -> None:
    rows = [made("g", i, a, [7]) for i, a in enumerate(advantages)]
    assert [w_T.tolist() for w_T in weights(CreditView(rows), **BARE)] == [[1.0]] * len(rows)
    assert weights(CreditView([]), **BARE) == []


def test_entropy_lowers_the_advantage_or_takes_it_away() -> None:
    policy = tiny.policy()
    rows = tiny.rows(groups=2, size=3, seed=1)
    view = CreditView(rows, PolicyReader(policy))
    means = [float(e_T.mean()) for e_T in view.entropies]
    ceiling = sorted(means)[3] + 1e-6
    plain = weights(CreditView(rows), **BARE)
    for row, w_T, before_T, mean in zip(
        rows, weights(view, ceiling=ceiling), plain, means, strict=True
    ):
        now_T = np.zeros_like(before_T)
        if mean <= ceiling:
            now_T = (row.advantage - 0.1 * mean) * before_T
        np.testing.assert_allclose(row.advantage * w_T, now_T, rtol=1e-5)


def test_entropy_needs_the_policy() -> None:
    with pytest.raises(PoiseError, match="need the policy"):
        weights(CreditView([made("g", 0, 1.0, [7])]))


@pytest.mark.parametrize(
    "settings", [{"boost": -1.0}, {"penalty": np.nan}, {"ceiling": -0.1}, {"boost": np.inf}]
)
def test_settings_below_zero_or_without_end_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(PoiseError, match=r"^gtpo: set boost, penalty and ceiling to 0 or above"):
        weights(CreditView([]), **settings)
