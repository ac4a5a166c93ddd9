"""Comparing runs of another trainer whose batch plans are known; they keep its step numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts.importing.foreign_nemo_rl import POLICY, sample_record, write_config, write_step
from report.synthetic import Page
from report.test_comparison import charts, table

from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.report.compare.numbers import TableCell
from counterpoise.report.compare.page import write_comparison_page
from counterpoise.report.pages.imported import read_imported
from counterpoise.report.panels.buffer import wasted_shares


def imported(path: Path, steps: tuple[int, ...]) -> Path:
    """Each step samples two groups of two with unequal rewards, and masks one rollout."""
    for step in steps:
        records = [
            sample_record(
                [5, 6 + place // 2],
                [(POLICY, [20 + place, 2])],
                float(place % 2),
                advantage=1.0 if place % 2 else -1.0,
                weight=0.0 if place == 3 else 1.0,
            )
            for place in range(4)
        ]
        write_step(path / "theirs", records, step)
    write_config(path / "theirs" / "config.yaml")
    import_run(path / "theirs", path / "run")
    return path / "run"


def test_imports_with_plans_are_compared_without_a_buffer(tmp_path: Path):
    runs = [imported(tmp_path / "a", (100, 101, 103)), imported(tmp_path / "b", (50, 103))]
    assert wasted_shares(read_imported(runs[0])[0])[-1] == (103, pytest.approx(1 / 4))
    lines = table(runs)
    assert lines["wasted rollouts"] == [TableCell("25.0\u2009%")] * 2
    assert lines["iterations with an update"] == [TableCell("3"), TableCell("2")]
    assert lines["optimizer steps"] == [TableCell("3"), TableCell("2")]
    drawn = charts(Page(write_comparison_page(runs, tmp_path / "page.html")))["Wasted rollouts"]
    params = {param["name"]: param.get("value") for param in drawn["params"]}
    # The runs share the axis of iterations, which begins with the earliest of them.
    assert params["starts"] == {"rollouts": 0, "steps": 0, "iteration": 50}
    assert params["ends"]["iteration"] == 103
