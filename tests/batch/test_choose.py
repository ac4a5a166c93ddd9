"""Both units of selection against exhaustive search and hand-made cases."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from counterpoise.batch import choose_groups, choose_rollouts
from counterpoise.types import Row


def group(name: str, positive: int, negative: int) -> tuple[Row, ...]:
    """Advantages as of 0/1 rewards without std: n/G and -p/G."""
    total = positive + negative
    values = [negative / total or 1.0] * positive + [-positive / total or -1.0] * negative
    return tuple(Row(name, a, 1, index=i) for i, a in enumerate(values))


def groups(*counts: tuple[int, int]) -> list[tuple[Row, ...]]:
    return [group(f"g{i}", p, n) for i, (p, n) in enumerate(counts)]


def totals(counts):
    return sum(p for p, _ in counts), sum(n for _, n in counts)


counts_lists = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(any), min_size=1, max_size=9
)
taus = st.sampled_from([0.0, 0.1, 0.25, 0.4, 0.5])


def kept_counts(chosen):
    return [
        (sum(row.advantage > 0 for row in rows), sum(row.advantage < 0 for row in rows))
        for _, rows in chosen
    ]


def a_batch_exists(counts, target, tau, limit):
    for size in range(1, len(counts) + 1):
        for subset in combinations(counts, size):
            p, n = totals(subset)
            if target <= p + n < limit and min(p, n) >= tau * (p + n):
                return True
    return False


@example([(1, 4), (5, 5)], 11, 0.4)  # 0.4 * 15 is 6 only if 15 is formed first
@settings(max_examples=300, deadline=None)
@given(counts_lists, st.integers(1, 30), taus)
def test_groups_are_found_if_and_only_if_they_exist(counts, target, tau):
    limit = target + max(p + n for p, n in counts)
    chosen = choose_groups.choose_groups(groups(*counts), target, tau)
    assert (chosen is not None) == a_batch_exists(counts, target, tau, limit)
    if chosen is not None:
        p, n = totals(kept_counts(chosen))
        assert target <= p + n < limit
        assert min(p, n) >= tau * (p + n)
        youngest = chosen[-1][0]  # no shorter run of oldest groups holds a batch
        assert not a_batch_exists(counts[:youngest], target, tau, limit)


def test_groups_skip_what_does_not_balance():
    waiting = groups((7, 1), (7, 1), (7, 1), (1, 7), (4, 4), (1, 7))
    chosen = choose_groups.choose_groups(waiting, target=16, tau=0.5)
    assert chosen is not None
    assert [g for g, _ in chosen] == [0, 3]


def test_groups_wait_for_their_counterpart():
    assert choose_groups.choose_groups(groups((7, 1), (7, 1), (7, 1)), target=8, tau=0.25) is None


@settings(max_examples=300, deadline=None)
@given(counts_lists, st.integers(1, 30), taus)
def test_rollouts_fill_the_target_exactly(counts, target, tau):
    assume(2 * math.ceil(tau * target) <= target)  # the buffer refuses others
    chosen = choose_rollouts.choose_rollouts(groups(*counts), target, tau)
    p, n = totals(counts)
    assert (chosen is not None) == (p + n >= target and min(p, n) >= tau * target)
    if chosen is None:
        return
    kept = kept_counts(chosen)
    p, n = totals(kept)
    mixed = sum(1 for had_p, had_n in counts[: len(chosen)] if had_p and had_n)
    assert p + n == (target + 1 if 2 * mixed > target else target)
    assert target % 2 == 1 or p + n == target
    assert min(p, n) >= tau * (p + n)
    assert [g for g, _ in chosen] == list(range(len(chosen)))
    for (had_p, had_n), (has_p, has_n) in zip(counts, kept, strict=False):
        assert has_p <= had_p
        assert has_n <= had_n
        if had_p and had_n:
            assert has_p
            assert has_n
    assert not enough(counts[: len(chosen) - 1], target, tau)  # no shorter run would do


def enough(counts, target, tau):
    p, n = totals(counts)
    return p + n >= target and min(p, n) >= tau * target


def test_rollouts_lose_the_majority_first_and_the_last_sampled():
    chosen = choose_rollouts.choose_rollouts(groups((1, 7), (3, 5)), target=8, tau=0.5)
    assert chosen is not None
    assert kept_counts(chosen) == [(1, 2), (3, 2)]
    assert [[row.index for row in rows] for _, rows in chosen] == [[0, 1, 2], [0, 1, 2, 3, 4]]
    for _, rows in chosen:
        assert abs(sum(row.advantage for row in rows)) < 1e-12


def test_rollouts_level_the_fullest_group_first():
    chosen = choose_rollouts.choose_rollouts(groups((4, 0), (1, 6), (1, 3)), target=12, tau=0.5)
    assert chosen is not None
    assert kept_counts(chosen) == [(4, 0), (1, 3), (1, 3)]


def test_an_odd_target_of_pairs_is_exceeded_by_one():
    chosen = choose_rollouts.choose_rollouts(groups((1, 1), (1, 1), (1, 1)), target=5, tau=0.25)
    assert chosen is not None
    assert kept_counts(chosen) == [(1, 1)] * 3


def test_a_group_that_loses_nothing_is_the_same_object():
    waiting = groups((2, 2), (2, 2))
    chosen = choose_rollouts.choose_rollouts(waiting, target=8, tau=0.5)
    assert chosen == [(0, waiting[0]), (1, waiting[1])]


@pytest.mark.parametrize("choose", [choose_rollouts.choose_rollouts, choose_groups.choose_groups])
@pytest.mark.parametrize(("tau", "counts"), [(0.28, (7, 18)), (0.07, (93, 7)), (0.14, (7, 43))])
def test_a_share_that_a_product_rounds_past(choose, tau, counts):
    """0.28 * 25 is above 7 in floating point, and 7 of 25 is a share of 0.28."""
    size = sum(counts)
    assert tau * size > min(counts)
    chosen = choose(groups(counts), size, tau)
    assert chosen is not None
    assert kept_counts(chosen) == [counts]
    fewer = [count - 1 if count == min(counts) else count + 1 for count in counts]
    assert choose(groups(tuple(fewer)), size, tau) is None
