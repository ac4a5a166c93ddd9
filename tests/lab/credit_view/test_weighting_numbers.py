"""The numbers of `poise credit` by hand: means, half, residual, correlation, kinds of tokens."""

from __future__ import annotations

import numpy as np
import pytest

from counterpoise.errors import PoiseError
from counterpoise.lab.credit_view.agreement import rank_agreement
from counterpoise.lab.credit_view.measure import (
    check_weights,
    share_carrying_half,
    weight_statistics,
)
from counterpoise.lab.credit_view.preferences import preferred_types
from counterpoise.lab.credit_view.token_strips import (
    group_outcome,
    groups_that_fit,
    row_outcome,
)
from counterpoise.types import Rollout, Row


def rows(*of: tuple[str, float, list[int]]) -> list[Row]:
    made = []
    for group, advantage, response in of:
        ids = np.array(response, np.int32)
        lp = np.full(len(ids), -1.0, np.float32)
        rollout = Rollout(group, "?", "", "", float(advantage > 0), ids[:1], ids, lp)
        made.append(Row(group, advantage, len(ids), index=len(made), rollout=rollout))
    return made


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_numbers_by_hand() -> None:
    """Two rollouts share two tokens: the first has (+2, -2), the second (+4, -1)."""
    two = rows(("a", 2.0, [5, 6, 7]), ("a", -1.0, [5, 6, 8]))
    n = weight_statistics(two, [floats(1, 2, 0), floats(2, 1, 1)])
    assert n.mean_positive == 1
    assert n.mean_negative == pytest.approx(4 / 3)
    assert (n.lowest, n.highest, n.zeros, n.ones) == (0, 2, 1 / 6, 1 / 2)
    assert n.spread == pytest.approx(np.std([1, 2, 0, 2, 1, 1]))
    assert n.half == 2 / 6  # |A w| = 2 4 0, 2 1 1: 4 + 2 of 10
    assert n.residual == pytest.approx((abs(2 - 2) + abs(4 - 1)) / (2 + 2 + 4 + 1))


def test_one_sign_and_nothing_shared() -> None:
    n = weight_statistics(rows(("a", 1.0, [5]), ("b", 1.0, [5])), [floats(1), floats(1)])
    assert (n.mean_positive, n.mean_negative, n.residual) == (1.0, None, None)
    assert share_carrying_half(np.zeros(3)) == 0


@pytest.mark.parametrize("seed", range(5))
def test_agreement_is_spearmans(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(0, 6, 40).astype(np.float32) for _ in range(2))  # with ties

    def ranks(x: np.ndarray) -> list[float]:
        return [sum(y < v for y in x) + (sum(y == v for y in x) + 1) / 2 for v in x]

    wanted = np.corrcoef(ranks(a), ranks(b))[0, 1]
    found = rank_agreement([[a[:17], a[17:]], [b[:17], b[17:]], [np.ones(40, np.float32)]])
    assert found[0][1] == pytest.approx(wanted)
    assert found[0][0] == pytest.approx(1)
    assert found[0][2] is found[2][2] is None


def test_kinds_of_tokens() -> None:
    one = rows(("a", 1.0, [3] * 30 + [4] * 30 + [9]))
    most, least = preferred_types(one, [floats(*[2.0] * 30, *[0.5] * 30, 9.0)])
    assert [(t.token, t.count, t.mean) for t in most] == [(3, 30, 2.0)]  # one 9 says nothing
    assert [(t.token, t.count, t.mean) for t in least] == [(4, 30, 0.5)]
    assert preferred_types(one, [np.ones(61, np.float32)]) == ([], [])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([floats(1, 1)], "1 rows instead of 2"),
        ([floats(1, 1), floats(1, 1)], "1 tokens"),
        ([floats(1, np.nan), floats(1)], "not finite"),
    ],
)
def test_what_a_weighting_owes(weights: list[np.ndarray], message: str) -> None:
    with pytest.raises(PoiseError, match=message):
        check_weights("mine", rows(("a", 1.0, [5, 6]), ("a", -1.0, [5])), weights)


def test_a_large_batch_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rows(("a", 1.0, [1] * 5), ("b", 1.0, [1] * 5), ("b", -1.0, [1] * 5))
    assert groups_that_fit(made) == [[1, 2], [0]]  # both signs first
    monkeypatch.setattr("counterpoise.lab.credit_view.token_strips.MAX_TOKENS", 4)
    assert groups_that_fit(made) == [[1, 2]]  # never none


def test_picker_and_cards_agree_on_what_a_rollout_got() -> None:
    rewards = (0.12, -0.07, -0.07, -0.07)
    assert group_outcome(rewards, is_graded=True) == "mean reward -0.0225"
    assert row_outcome(-0.07, is_graded=True) == "reward -0.07"
    assert group_outcome((1.0, 0.0, 0.0), is_graded=False) == "1 ✓ 2 ✗"
    marks = [row_outcome(reward, is_graded=False)[0] for reward in (1.0, 0.0, -1.0)]
    assert marks == ["✓", "✗", "✗"]
