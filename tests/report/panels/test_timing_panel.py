"""Seconds by stage, as they are in metrics.jsonl."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from report.synthetic import write_run

from counterpoise.report.panels import timing
from counterpoise.report.run_data import RunData
from counterpoise.serve.views.run import STAGES


def timed_run(path: Path, iterations: int) -> RunData:
    run = RunData.read(write_run(path, iterations=2, tau=0.0))
    metrics = [
        {"iteration": n, "sample_seconds": 3.0, "update_seconds": float(n), "verify_seconds": 0.0}
        for n in range(1, iterations + 1)
    ]
    return replace(run, metrics=metrics, evaluations=[{"evaluate_seconds": 4.0}])


def test_stages_are_stacked_and_shared_out(tmp_path: Path):
    panel = timing.panel(timed_run(tmp_path / "run", 3))
    assert panel is not None
    (figure,) = panel.body  # no tokens_per_second: no chart of it
    spec = figure.chart.to_dict()
    areas = [area for data in spec["datasets"].values() for area in data if "top" in area]
    tops = {(area["iteration"], area["field"]): (area["floor"], area["top"]) for area in areas}
    assert tops[3, "sample"] == (0, 3.0)
    assert tops[3, "update"] == (3.0, 6.0)
    assert {field for _, field in tops} == {"sample", "update"}  # verify took no time
    assert figure.keys == (("series", "sample"), ("positive", "update"))
    rows = timing._stage_rows(
        timed_run(tmp_path / "other", 3), [timing.STAGES[0], timing.STAGES[4]]
    )
    assert [(name, seconds, share) for name, _, seconds, share in rows[:2]] == [
        ("sample", 3.0, 0.6),
        ("update", 2.0, 0.4),
    ]
    assert rows[2][0] == "evaluation"
    assert rows[2][2] == 4.0
    assert "60.0" in panel.after


def test_probes_are_a_stage_with_a_share(tmp_path: Path):
    run = timed_run(tmp_path / "run", 2)
    run = replace(run, metrics=[{**record, "probe_seconds": 0.5} for record in run.metrics])
    panel = timing.panel(run)
    assert panel is not None
    assert panel.body[0].keys[-1] == ("soft", "probe")
    shares = {name: share for name, _, _, share in timing._stage_rows(run, timing.STAGES)}
    assert shares["probe"] == 0.1  # of 3 + 1.5 + 0.5 seconds
    assert "10.0" in panel.after
    assert "probe" in STAGES  # those of `poise serve`


def test_a_long_run_is_drawn_in_means(tmp_path: Path):
    run = timed_run(tmp_path / "run", 900)
    columns, width = timing.mean_columns(run.metrics, ["update"])
    assert (len(columns), width) == (300, 3)
    assert columns[1] == {"iteration": 5, "update": 5.0}  # of 4, 5 and 6
    total = sum(column["update"] for column in columns) * width
    assert total == pytest.approx(sum(range(1, 901)))
    panel = timing.panel(run)
    assert panel is not None
    assert panel.body[0].note == "Seconds of an iteration, means of 3 iterations."


def test_a_run_without_times_has_no_panel(tmp_path: Path):
    run = timed_run(tmp_path / "run", 2)
    assert timing.panel(replace(run, metrics=[{"iteration": 1}])) is None


def test_the_report_has_it(tmp_path: Path):
    path = write_run(tmp_path / "run", iterations=2, tau=0.0)
    record = json.loads((path / "metrics.jsonl").read_text().splitlines()[0])
    assert timing.panel(RunData.read(path)) is not None
    assert record["sample_seconds"] > 0
