from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.batch.partition import partition


def sums(loads, parts):
    return sorted(sum(loads[i] for i in part) for part in parts)


@settings(deadline=None)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=60), st.data(), st.integers(0, 99))
def test_parts_hold_every_item_once_in_equal_counts(loads, data, seed):
    num_parts = data.draw(st.integers(1, len(loads)))
    parts = partition(loads, num_parts, np.random.default_rng(seed))
    assert sorted(i for part in parts for i in part) == list(range(len(loads)))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    loose = partition(loads, num_parts, np.random.default_rng(seed), unequal_counts_above=1.0)
    assert sorted(i for part in loose for i in part) == list(range(len(loads)))
    assert all(loose)
    assert sums(loads, loose)[-1] <= sums(loads, parts)[-1]


def test_known_optimum():
    # Equal counts: 8 + 5 + 4 against 7 + 6 + 3.
    loads = [8, 7, 6, 5, 4, 3]
    assert sums(loads, partition(loads, 2, np.random.default_rng(0))) == [16, 17]


def test_equal_loads_balance_exactly():
    assert sums([7] * 24, partition([7] * 24, 4, np.random.default_rng(0))) == [42] * 4


def test_a_heavy_load_takes_the_lightest_company():
    loads = [100, *range(1, 12)]
    parts = partition(loads, 2, np.random.default_rng(0))
    assert sums(loads, parts) == [6 + 7 + 8 + 9 + 10 + 11, 100 + 1 + 2 + 3 + 4 + 5]


def test_loose_counts_leave_a_heavy_load_alone():
    loads = [100, *range(1, 12)]
    parts = partition(loads, 2, np.random.default_rng(0), unequal_counts_above=1.02)
    assert sums(loads, parts) == [66, 100]
