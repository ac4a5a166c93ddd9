"""Positive-negative pairing: which groups meet, and what happens where pairs are too few."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.batch.compose import check_plan, compose
from counterpoise.errors import PoiseError
from counterpoise.types import BatchPlan, Row


def group(name: str, right: int, wrong: int, tokens: int = 10) -> list[Row]:
    return [Row(name, 1.0, tokens)] * right + [Row(name, -1.0, tokens)] * wrong


def groups_of(rows: list[Row], plan: BatchPlan) -> list[set[str]]:
    return [{rows[i].group for i in step} for step in plan.steps]


def test_hard_meets_easy() -> None:
    rows = group("a", 1, 7) + group("b", 2, 6) + group("c", 6, 2) + group("d", 7, 1)
    plan = compose("paired", rows, 2, seed=3)
    assert sorted(map(sorted, groups_of(rows, plan))) == [["a", "d"], ["b", "c"]]


def test_an_odd_group_and_groups_without_signal_are_placed_alone() -> None:
    silent = [Row("s", 0.0, 10)] * 8
    rows = group("a", 1, 7) + group("m", 4, 4) + group("d", 7, 1) + silent
    steps = groups_of(rows, compose("paired", rows, 3, seed=0))
    assert {"a", "d"} in steps
    assert sorted(map(sorted, steps)) == [["a", "d"], ["m"], ["s"]]


def test_where_steps_would_stay_empty_the_most_similar_groups_are_separated() -> None:
    rows = group("a", 1, 7) + group("b", 3, 5) + group("c", 5, 3) + group("d", 7, 1)
    steps = groups_of(rows, compose("paired", rows, 3, seed=0))
    assert sorted(map(sorted, steps)) == [["a", "d"], ["b"], ["c"]]
    with pytest.raises(PoiseError, match="4 whole groups cannot fill 5 steps"):
        compose("paired", rows, 5, seed=0)


def test_a_plan_that_separates_a_pair_is_found() -> None:
    rows = group("a", 1, 1) + group("b", 1, 3) + group("c", 3, 1)
    good = BatchPlan("paired", (tuple(range(2)), tuple(range(2, 10))))
    check_plan(rows, good)
    bad = BatchPlan("paired", (tuple(range(6)), tuple(range(6, 10))))
    with pytest.raises(PoiseError, match="group 'b' in step 0 is without its partner"):
        check_plan(rows, bad)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(1, 90)), min_size=2, max_size=14),
    st.integers(1, 6),
    st.integers(0, 999),
)
def test_every_sure_pair_meets(sizes: list[tuple[int, int]], num_steps: int, seed: int) -> None:
    rows = [r for g, (right, t) in enumerate(sizes) for r in group(f"g{g}", right, 8 - right, t)]
    if num_steps > len(sizes):
        return
    steps = groups_of(rows, compose("paired", rows, num_steps, seed))  # checks its promise
    rates = sorted(right for right, _ in sizes)
    extremes = {f"g{i}" for i, (right, _) in enumerate(sizes) if right == rates[0]}
    is_unique = len(extremes) == 1 and rates.count(rates[-1]) == 1
    if is_unique and num_steps < len(sizes):
        easiest = next(f"g{i}" for i, (r, _) in enumerate(sizes) if r == rates[-1])
        assert any({*extremes, easiest} <= step for step in steps)
