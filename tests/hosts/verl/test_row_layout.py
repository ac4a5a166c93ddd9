"""A plan over verl's ranks: every row once, every step its own block, loads level, nothing lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.batch.compose import check_plan, compose
from counterpoise.hosts.verl.row_layout import block_size, executed_plan, order_rows
from counterpoise.types import BatchPlan, Row


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Row], int, int, int, list[int]]:
    sizes = draw(st.lists(st.integers(1, 6), min_size=4, max_size=16))
    rows = [
        Row(group=f"g{g}", advantage=0.0, num_tokens=draw(st.integers(1, 90)), index=i)
        for g, size in enumerate(sizes)
        for i in range(size)
    ]
    order = draw(st.permutations(range(len(rows))))
    ranks, micro = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    together = draw(st.lists(st.integers(1, 6), max_size=2))
    return [rows[i] for i in order], draw(st.integers(1, 4)), ranks, micro, together


@settings(max_examples=150, deadline=None)
@given(cases(), st.sampled_from(["grouped", "shuffled"]))
def test_what_is_executed_is_the_plan(
    case: tuple[list[Row], int, int, int, list[int]], rule: str
) -> None:
    rows, steps, ranks, micro, together = case
    plan = compose(rule, rows, steps, seed=0)
    block = block_size(plan, ranks, micro, together)
    assert block % micro == 0
    assert all(block * steps % size == 0 for size in together)
    order = order_rows(plan, [row.num_tokens for row in rows], ranks, block, filler_load=2, seed=0)
    assert sorted(order) == list(range(ranks * block * steps))  # every row and filler once
    is_row = [i < len(rows) for i in order]
    executed = executed_plan(is_row, ranks, block, rule)
    placed = [i for i in order if i < len(rows)]
    result = [sorted(placed[i] for i in step) for step in executed.steps]
    assert result == [sorted(step) for step in plan.steps]
    check_plan([rows[i] for i in placed], executed)  # and so it keeps the rule's promise


def by_hand(order: list[int], ranks: int, steps: int) -> list[list[int]]:
    """As verl cuts a batch: equal parts for the ranks, each cut into equal mini-batches."""
    share = len(order) // ranks
    chunks = [order[r * share : (r + 1) * share] for r in range(ranks)]
    size = share // steps
    return [[i for chunk in chunks for i in chunk[s * size : (s + 1) * size]] for s in range(steps)]


def test_whole_groups_of_equal_size_need_no_fillers() -> None:
    rows = [Row(f"g{i % 16}", 0.0, 20 + 3 * (i % 7)) for i in range(64)]
    plan = compose("grouped", rows, 4, seed=1)
    block = block_size(plan, ranks=2)
    assert block == 8
    order = order_rows(plan, [row.num_tokens for row in rows], 2, block, filler_load=9, seed=0)
    assert sorted(order) == list(range(64))
    for step in by_hand(order, ranks=2, steps=4):
        names = [rows[i].group for i in step]
        assert sorted(names) == sorted(4 * list(set(names)))
        assert len(set(names)) == 4


def test_ranks_carry_equal_loads_inside_a_step() -> None:
    loads = [100, 1, 1, 100, 50, 51, 49, 50]
    plan = BatchPlan("shuffled", ((0, 1, 2, 3), (4, 5, 6, 7)))
    order = order_rows(plan, loads, ranks=2, block=2, filler_load=1, seed=0)
    for rank in (order[:4], order[4:]):
        assert sum(loads[i] for i in rank[:2]) == 101
        assert sum(loads[i] for i in rank[2:]) == 100


def test_verls_own_order_is_read_off_its_places() -> None:
    """Two ranks, two mini-batches of two rows each, the last place a filler."""
    plan = executed_plan([True] * 7 + [False], ranks=2, block=2, composer="verl")
    assert plan.steps == ((0, 1, 4, 5), (2, 3, 6))
