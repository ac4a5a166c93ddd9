"""Cancellation credit: what the other rollouts of a group do to a token, as a weight."""

from __future__ import annotations

import numpy as np
import one_by_one
import pytest
import tiny
import torch
from one_by_one import made

from counterpoise.credit.coupling_weights import cancellation
from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.errors import PoiseError

POLICY = tiny.policy()
ROWS = tiny.rows(groups=3, size=4, seed=5, longest=8)


def slow(rows, temperature: float, strength: float, scope: str) -> list[float]:
    """The formula, a pair of tokens at a time."""
    K, row = one_by_one.kernel(POLICY, rows, temperature), one_by_one.row_of(rows)
    found = []
    for j, mine in enumerate(row):
        up = down = 0.0
        for k, other in enumerate(row):
            same_group = rows[mine].group == rows[other].group
            if other == mine or (scope == "group" and not same_group):
                continue
            push = rows[other].advantage * K[j, k]
            if rows[other].advantage > 0:
                up += push
            else:
                down += push
        gross = abs(up) + abs(down)
        credit = (up + down) / gross if gross else 0.0
        found.append(1 + strength * rows[mine].sign * credit)
    return found


@pytest.mark.parametrize("scope", ["group", "batch"])
@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_the_formula(scope: str, strength: float) -> None:
    found = cancellation(
        CreditView(ROWS, PolicyReader(POLICY, 0.8)), strength=strength, scope=scope
    )
    assert [len(w_T) for w_T in found] == [row.num_tokens for row in ROWS]
    assert all(w_T.dtype == np.float32 for w_T in found)
    expected = slow(ROWS, 0.8, strength, scope)
    np.testing.assert_allclose(np.concatenate(found), expected, atol=2e-3)
    assert np.concatenate(found).min() >= 1 - strength
    assert np.concatenate(found).max() <= 1 + strength


def test_what_right_and_wrong_share_is_left_alone() -> None:
    """Four rollouts with one first token, two right and two wrong: of any one's three others,
    two oppose it and one is with it, so s = -1/3 for the right ones and +1/3 for the wrong."""
    rows = [made("g", i, a, [7]) for i, a in enumerate((1.0, 1.0, -1.0, -1.0))]
    found = cancellation(CreditView(rows, PolicyReader(POLICY)), strength=0.6)
    np.testing.assert_allclose(np.concatenate(found), [0.8] * 4, atol=1e-5)


def test_tokens_that_only_one_side_chose_are_pushed_harder() -> None:
    """After one prompt, the likeliest token in both right rollouts, the next in both wrong ones.
    All agree: lifting one lowers the other, for phi = -p1 - p2 + sum p^2 <= -p2."""
    with torch.no_grad():
        logits = POLICY.model(torch.tensor([[5]])).logits[0, 0]
    one, two = logits.topk(2).indices.tolist()
    tokens = [(1.0, one), (1.0, one), (-1.0, two), (-1.0, two)]
    rows = [made("g", i, a, [token]) for i, (a, token) in enumerate(tokens)]
    found = cancellation(CreditView(rows, PolicyReader(POLICY)), strength=0.5)
    np.testing.assert_allclose(np.concatenate(found), [1.5] * 4, atol=1e-5)


def test_nobody_else_no_opinion() -> None:
    alone = [made("g", 0, 1.0, [7, 8, 7]), made("h", 0, -1.0, [9])]
    for w_T in cancellation(CreditView(alone, PolicyReader(POLICY))):
        np.testing.assert_array_equal(w_T, 1)
    (only,) = cancellation(CreditView(alone[:1], PolicyReader(POLICY)), scope="batch")
    np.testing.assert_array_equal(only, 1)
    assert cancellation(CreditView([], PolicyReader(POLICY))) == []


def test_groups_without_opposing_outcomes_still_have_an_opinion() -> None:
    rows = [made("g", i, -1.0, [7]) for i in range(3)]
    np.testing.assert_allclose(
        np.concatenate(cancellation(CreditView(rows, PolicyReader(POLICY)))), [1.5] * 3, atol=1e-6
    )


def test_advantages_scale_out() -> None:
    scaled = one_by_one.with_advantages(ROWS, [3 * row.advantage for row in ROWS])
    for left, right in zip(
        cancellation(CreditView(ROWS, PolicyReader(POLICY))),
        cancellation(CreditView(scaled, PolicyReader(POLICY))),
        strict=True,
    ):
        np.testing.assert_allclose(left, right, atol=1e-4)


def test_strength_zero_is_uniform() -> None:
    for w_T in cancellation(CreditView(ROWS, PolicyReader(POLICY)), strength=0.0):
        np.testing.assert_array_equal(w_T, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"scope": "rollout"}, "group, batch"), ({"strength": 1.5}, "choose 0 to 1")],
)
def test_settings_that_make_no_sense(settings: dict, message: str) -> None:
    with pytest.raises(PoiseError, match=message):
        cancellation(CreditView(ROWS, PolicyReader(POLICY)), **settings)
