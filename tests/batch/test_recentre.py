from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.batch.recentre import recentre
from counterpoise.types import Row

size = st.floats(1e-6, 1e3)


def rows(advantages):
    return [Row("g", float(a), 1, index=i) for i, a in enumerate(advantages)]


def advantages(group):
    return np.array([row.advantage for row in group])


@settings(deadline=None)
@given(st.lists(size, min_size=1, max_size=8), st.lists(size, min_size=1, max_size=8))
def test_zero_sum_same_signs_same_gap(positive, negative):
    before = np.array([*positive, *(-a for a in negative)])
    after = advantages(recentre(rows(before)))
    assert after.sum() == pytest.approx(0.0, abs=1e-9 * np.abs(after).sum())
    assert (np.sign(after) == np.sign(before)).all()

    def gap(a):
        return a[a > 0].mean() - a[a < 0].mean()

    assert gap(after) == pytest.approx(gap(before))


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), size, size)
def test_two_valued_rewards_lose_the_mean_of_the_kept(p, n, above, below):
    before = np.array([above] * p + [-below] * n)
    assert advantages(recentre(rows(before))) == pytest.approx(before - before.mean())


def test_closed_form():
    # p = 1, n = 2, S+ = 2, S- = 0.4: M = (2 * 2 + 0.4) / 3.
    after = advantages(recentre(rows([2.0, -0.1, -0.3])))
    assert after == pytest.approx([4.4 / 3, -1.1 / 3, -3.3 / 3])


def test_a_row_between_the_old_mean_and_the_new_keeps_its_sign():
    kept = np.array([2.0, 0.1, -0.7])  # two more of -0.7 were dropped
    assert (kept - kept.mean())[1] < 0  # subtracting would turn it
    assert advantages(recentre(rows(kept)))[1] > 0


def test_one_sign_is_left_alone():
    assert advantages(recentre(rows([1.0, 0.5]))).tolist() == [1.0, 0.5]
