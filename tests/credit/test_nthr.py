"""NTHR: which tokens of wrong rollouts are held back, by the kernel one pair at a time."""

from __future__ import annotations

import numpy as np
import one_by_one
import pytest
import tiny
from one_by_one import made

from counterpoise.credit.coupling_weights import nthr
from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.errors import PoiseError

POLICY = tiny.policy()
ROWS = one_by_one.with_advantages(
    tiny.rows(groups=3, size=4, seed=7, longest=8),
    [1, -1, -1, 1, 3, -1, -1, -1, -3, 1, 1, 1],
)


def slow(rows, temperature: float, beta: float, eta: float | None) -> list[float]:
    K, row = one_by_one.kernel(POLICY, rows, temperature), one_by_one.row_of(rows)
    N = len(row)
    right = [rows[i].advantage > 0 for i in row]
    group = [rows[i].group for i in row]
    s = [sum(K[j, k] for k in range(N) if right[k] and group[k] == group[j]) for j in range(N)]
    found = []
    for j in range(N):
        mine = [i for i, r in enumerate(rows) if r.group == group[j]]
        means = [
            sum(s[k] for k in range(N) if row[k] == i) / rows[i].num_tokens
            for i in mine
            if rows[i].advantage > 0
        ]
        held = means and not right[j] and s[j] > beta * min(means)
        p = sum(rows[i].advantage > 0 for i in mine) / len(mine)
        found.append((2 * abs(0.5 - p) if eta is None else eta) if held else 1.0)
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(("beta", "eta"), [(1.0, None), (0.1, 0.0), (0.05, 0.25)])
def test_the_formula(temperature: float, beta: float, eta: float | None) -> None:
    view = CreditView(ROWS, PolicyReader(POLICY, temperature))
    given = {"by_rate": True} if eta is None else {"by_rate": False, "eta": eta}
    found = np.concatenate(nthr(view, beta=beta, **given))
    expected = slow(ROWS, temperature, beta, eta)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    if beta < 1:
        assert (found < 1).any()  # some are held back


def test_the_rate_decides_how_much_is_kept() -> None:
    """One right of four: 2 |1/2 - 1/4| = 1/2. Wrong copies of the right rollout push it most."""
    rows = [made("g", i, a, [7, 8]) for i, a in enumerate((3.0, -1.0, -1.0, -1.0))]
    right, *wrong = nthr(CreditView(rows, PolicyReader(POLICY)), beta=0.5)
    assert right.tolist() == [1.0, 1.0]  # never a token of a right rollout
    for w_T in wrong:
        assert set(w_T.tolist()) <= {0.5, 1.0}
        assert 0.5 in w_T.tolist()
    _, *silenced = nthr(CreditView(rows, PolicyReader(POLICY)), beta=0.5, by_rate=False)
    assert 0.0 in silenced[0].tolist()


@pytest.mark.parametrize("advantages", [[-1, -1], [1, 2]])
def test_a_group_of_one_sign_keeps_its_weights(advantages: list[float]) -> None:
    rows = [made("g", i, a, [7, 8, 9]) for i, a in enumerate(advantages)]
    for w_T in nthr(CreditView(rows, PolicyReader(POLICY))):
        np.testing.assert_array_equal(w_T, 1)


def test_single_tokens_and_nothing() -> None:
    rows = [made("g", 0, 1.0, [7]), made("g", 1, -1.0, [7])]
    right, wrong = nthr(CreditView(rows, PolicyReader(POLICY)), by_rate=False, beta=0.9)
    assert right.tolist() == [1.0]
    assert wrong.tolist() == [0.0]  # the same token after the same prompt: s is tau itself
    _, kept = nthr(CreditView(rows, PolicyReader(POLICY)), by_rate=False, beta=1.1)
    assert kept.tolist() == [1.0]
    assert nthr(CreditView([], None)) == []


def test_eta_is_not_ignored() -> None:
    view = CreditView(ROWS, PolicyReader(POLICY))
    with pytest.raises(PoiseError, match=r"^nthr: eta 0\.7 is not used while by_rate replaces it"):
        nthr(view, eta=0.7)
    assert np.float32(0.7) in np.concatenate(nthr(view, beta=0.05, eta=0.7, by_rate=False))
    with pytest.raises(PoiseError, match=r"^nthr: eta -1 would not weaken tokens: choose 0 to 1"):
        nthr(view, eta=-1.0, by_rate=False)
