"""THR: the sign and the size of what a token does to the right rollouts of its group."""

from __future__ import annotations

import numpy as np
import one_by_one
import pytest
import tiny
from one_by_one import made

from counterpoise.credit.coupling_weights import thr as weights
from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.errors import PoiseError

POLICY = tiny.policy()
ROWS = one_by_one.with_advantages(
    tiny.rows(groups=3, size=4, seed=8, longest=8),
    [1, -1, -1, 1, 3, -1, -1, -1, -3, 1, 1, 1],
)


def hidden_reward(rows, temperature: float) -> list[float]:
    K, row = one_by_one.kernel(POLICY, rows, temperature), one_by_one.row_of(rows)
    found = []
    for j, mine in enumerate(row):
        s = 0.0
        for k, other in enumerate(row):
            if rows[other].advantage > 0 and rows[other].group == rows[mine].group:
                s += K[j, k]
        found.append(rows[mine].advantage * s)
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(("p", "tau"), [(0.1, 0.01), (-0.3, 0.0), (1.0, 0.5)])
def test_the_formula(temperature: float, p: float, tau: float) -> None:
    thr, row = hidden_reward(ROWS, temperature), one_by_one.row_of(ROWS)
    expected = []
    for j, value in enumerate(thr):
        group = [abs(v) for k, v in enumerate(thr) if ROWS[row[k]].group == ROWS[row[j]].group]
        counts = abs(value) > tau * sum(group) / len(group)
        expected.append((1 + p * np.sign(value)) if counts else 0.0)
    found = np.concatenate(
        weights(CreditView(ROWS, PolicyReader(POLICY, temperature)), p=p, tau=tau)
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)
    if tau == 0.5:
        assert 0 < (found == 0).sum() < len(found)


def test_a_right_token_helps_and_its_wrong_copy_harms() -> None:
    rows = [made("g", 0, 1.0, [7]), made("g", 1, -1.0, [7])]
    right, wrong = weights(CreditView(rows, PolicyReader(POLICY)), p=0.25)
    assert (right.tolist(), wrong.tolist()) == ([1.25], [0.75])
    explore = weights(CreditView(rows, PolicyReader(POLICY)), p=-0.25)
    assert [w_T.tolist() for w_T in explore] == [[0.75], [1.25]]


def test_a_group_without_right_rollouts_keeps_its_weights() -> None:
    wrong = [made("g", i, -1.0, [7, 8]) for i in range(2)]
    mixed = [made("h", 0, 1.0, [7]), made("h", 1, -1.0, [7])]
    for rows in (wrong, wrong + mixed):
        for w_T in weights(CreditView(rows, PolicyReader(POLICY)))[:2]:
            np.testing.assert_array_equal(w_T, 1)
    assert weights(CreditView([], None)) == []


def test_one_row() -> None:
    (found,) = weights(CreditView([made("g", 0, 1.0, [7])], PolicyReader(POLICY)), p=0.5)
    assert found.tolist() == [1.5]  # it helps itself


@pytest.mark.parametrize("p", [1.5, np.nan])
def test_p_beyond_one_is_refused(p: float) -> None:
    with pytest.raises(PoiseError, match="choose -1 to 1"):
        weights(CreditView(ROWS, PolicyReader(POLICY)), p=p)
