"""Trajectories above the group: what is kept together, for every composer of whole groups."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.batch.compose import check_plan, compose
from counterpoise.batch.plan_file import plan_file
from counterpoise.batch.units import rows_by_unit
from counterpoise.errors import PoiseError
from counterpoise.store.row_records import rows_from_tensors, rows_to_tensors
from counterpoise.types import BatchPlan, Rollout, Row

EMPTY = np.empty(0, np.int32)


def row(group: str, trajectory: str = "", advantage: float = 1.0, tokens: int = 3) -> Row:
    rollout = Rollout(
        group, "", "", "", 0.0, EMPTY, np.arange(tokens, dtype=np.int32),
        np.full(tokens, -0.5, np.float32),
    )  # fmt: skip
    return Row(group, advantage, tokens, rollout=rollout, trajectory=trajectory)


def test_by_hand() -> None:
    rows = [row("a", "t1"), row("b", "t1"), row("b", "t2"), row("c"), row("d", "t2"), row("c")]
    assert rows_by_unit(rows) == [[0, 1, 2, 4], [3, 5]]
    assert rows_by_unit([row("a"), row("b"), row("a")]) == [[0, 2], [1]]
    assert rows_by_unit([]) == []


def connected(rows: list[Row]) -> list[set[int]]:
    """Units by repeated merging of whatever shares a key."""
    units = [{i} for i in range(len(rows))]
    merged = True
    while merged:
        merged = False
        for left in units:
            for right in units:
                shares = left is not right and any(
                    rows[i].group == rows[j].group
                    or (rows[i].trajectory and rows[i].trajectory == rows[j].trajectory)
                    for i in left
                    for j in right
                )
                if shares:
                    left |= right
                    units.remove(right)
                    merged = True
                    break
            if merged:
                break
    return units


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 7), st.integers(0, 9), st.sampled_from([-1.0, 0.0, 1.0]),
            st.integers(1, 40),
        ),
        min_size=1, max_size=24,
    ),
    st.sampled_from(["grouped", "coupled", "paired"]),
    st.integers(1, 5),
    st.integers(0, 99),
)  # fmt: skip
def test_all_samples_of_a_trajectory_share_a_step(
    drawn: list[tuple[int, int, float, int]], composer: str, num_steps: int, seed: int
) -> None:
    # Trajectories 0 to 3 stand for rows without one.
    rows = [row(f"g{g}", f"t{t}" if t > 3 else "", a, n) for g, t, a, n in drawn]
    units = connected(rows)
    assert [set(unit) for unit in rows_by_unit(rows)] == sorted(units, key=min)
    if len(units) < num_steps:
        with pytest.raises(PoiseError, match="cannot fill"):
            compose(composer, rows, num_steps, seed)
        return
    plan = compose(composer, rows, num_steps, seed)
    step_of_row = {i: number for number, step in enumerate(plan.steps) for i in step}
    for key in ("group", "trajectory"):
        homes: dict[str, set[int]] = {}
        for i, made in enumerate(rows):
            if getattr(made, key):
                homes.setdefault(getattr(made, key), set()).add(step_of_row[i])
        assert all(len(steps) == 1 for steps in homes.values())


def test_a_plan_that_splits_a_trajectory_is_found() -> None:
    rows = [row("a", "t1"), row("b", "t1")]
    with pytest.raises(PoiseError, match="trajectory 't1' is in steps 0 and 1"):
        check_plan(rows, BatchPlan("grouped", ((0,), (1,))))
    check_plan(rows, BatchPlan("shuffled", ((0,), (1,))))


def test_files_and_checkpoints_keep_the_key(tmp_path: Path) -> None:
    lines = [
        {"prompt_id": p, "reward": r, "num_tokens": 5, "trajectory": t}
        for p, r, t in [("a", 1, 7), ("a", 0, 8), ("b", 1, 7), ("b", 0, 8), ("c", 1, None)]
    ]
    file = tmp_path / "rollouts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    assert sorted(plan_file(file, "grouped", 2, 0)["steps"]) == [[0, 1, 2, 3], [4]]
    rows = [row("a", "t1"), row("b")]
    again = rows_from_tensors(*rows_to_tensors(rows))
    assert [made.trajectory for made in again] == ["t1", ""]
