"""Rows of one agent are recognised by verl's keys and tags, and share an optimizer step."""

from __future__ import annotations

from counterpoise.batch.compose import compose
from counterpoise.batch.units import rows_by_unit
from counterpoise.hosts.verl.row_keys import trajectories_of_keys
from counterpoise.types import Row


def test_several_outputs_of_a_session_are_a_trajectory() -> None:
    keys = ["5c-1e_0_0", "5c-1e_1_0", "5c-1e_1_1", "77_1_0"]
    assert trajectories_of_keys(keys) == ["", "5c-1e_1", "5c-1e_1", ""]
    assert trajectories_of_keys([]) == []


def test_a_tag_joins_prompts_and_goes_before_the_key() -> None:
    keys = ["a_0_0", "b_0_0", "c_0_0", "c_0_1"]
    tags = [{"trajectory": "t1"}, {"trajectory": "t1", "seq_len": 9}, {}, {"trajectory": 7}]
    assert trajectories_of_keys(keys, tags) == ["t1", "t1", "c_0", "7"]


def test_calls_of_one_agent_share_a_step() -> None:
    """Four tasks of two calls each, every call a prompt of its own with two rollouts."""
    keys = [f"task{n}-call{c}_{s}_0" for n in range(4) for c in range(2) for s in range(2)]
    tags = [{"trajectory": f"task{n}-{s}"} for n in range(4) for _ in range(2) for s in range(2)]
    rows = [
        Row(key.split("_")[0], 0.0, 5, index=i, trajectory=trajectory)
        for i, (key, trajectory) in enumerate(
            zip(keys, trajectories_of_keys(keys, tags), strict=True)
        )
    ]
    assert len(rows_by_unit(rows)) == 4
    for step in compose("grouped", rows, 2, seed=0).steps:
        tasks = {rows[i].group.split("-")[0] for i in step}
        assert len(step) == 8
        assert len(tasks) == 2
