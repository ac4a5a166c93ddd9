"""The curve of a run, as it is on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.lab.experiments.curves import group_by_run, read_curve, run_seconds
from counterpoise.lab.experiments.design import RunKey
from counterpoise.store.folder import RunFolder

LINE = {"iteration": 1, "steps": 0, "rollouts": 64, "success": 0.4, "entropy": None}


def folder_of(path: Path, evaluations: list[dict[str, float]]) -> RunFolder:
    """The first iteration waited for balance: no update, no plan, no entropy."""
    folder = RunFolder.create(path, load_config("demo"))
    folder.append("metrics", {**LINE, "cancellation": None})
    later = {"iteration": 2, "steps": 3, "success": 0.6, "entropy": 0.3, "cancellation": 0.9}
    folder.append("metrics", {**LINE, **later, "dropped_surplus": 5, "dropped_aged": 2})
    described = {"split_share": 0.25, "max_abs_group_advantage_sum": 1.5}
    folder.append("plans", {"iteration": 2, "describe": described})
    for line in evaluations:
        folder.append("evaluations", line)
    return folder


def test_a_run_that_did_not_say_how_it_was_sampled(tmp_path: Path) -> None:
    lines = [{"iteration": 0, "mean": 0.45}, {"iteration": 2, "mean": 0.55}]
    curve = read_curve(folder_of(tmp_path / "run", lines))
    assert [r["updates"] for r in curve] == [0, 0, 3]
    assert [r["rollouts"] for r in curve] == [0, 64, 128]
    assert [r["heldout"] for r in curve] == [0.45, None, 0.55]
    assert [r["success"] for r in curve] == [None, 0.4, 0.6]
    assert [r["cancellation"] for r in curve] == [None, None, 0.9]
    assert [r["split"] for r in curve] == [None, None, 0.25]
    assert [r["dropped"] for r in curve] == [0, 0, 7]


def test_a_run_with_a_lost_line_has_no_curve(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run", [])
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "run" / "metrics.jsonl").write_text(lines[1] + "\n")
    with pytest.raises(PoiseError, match=r"has lost lines of metrics\.jsonl"):
        read_curve(folder)


def test_two_ways_of_sampling(tmp_path: Path) -> None:
    lines = [
        {"iteration": at, "temperature": t, "top_p": p, "mean": m}
        for at, t, p, m in [(0, 1.0, 1.0, 0.4), (0, 0.6, 0.95, 0.6), (2, 1.0, 1.0, 0.5),
                            (2, 0.6, 0.95, 0.7)]
    ]  # fmt: skip
    for line in lines[:3]:  # an older line lacks it
        line["evaluate_seconds"] = 1.5
    curve = read_curve(folder_of(tmp_path / "run", lines))
    assert [r["heldout"] for r in curve] == [0.4, None, 0.5]
    assert [r["heldout@0.6/0.95"] for r in curve] == [0.6, None, 0.7]
    assert [r["evaluate_seconds"] for r in curve] == [3.0, None, 1.5]
    assert run_seconds(curve) == 4.5


def test_success_on_a_benchmark_has_a_column_of_its_own(tmp_path: Path) -> None:
    setting = {"temperature": 1.0, "top_p": 1.0, "evaluate_seconds": 2.0}
    folder = folder_of(tmp_path / "run", [{"iteration": 0, "mean": 0.4, **setting}])
    for iteration, mean in ((0, 0.1), (2, 0.3)):
        line = {"iteration": iteration, "benchmark": "math500", "title": "Math", **setting}
        counts = {"prompts": 500, "samples": 2, "truncated_share": 0.0}
        folder.append(
            "benchmarks", {**line, **counts, "mean": mean, "low": mean - 0.05, "high": mean + 0.05}
        )
    curve = read_curve(folder)
    assert [r["heldout@1/1 on math500"] for r in curve] == [0.1, None, 0.3]
    assert [r["heldout"] for r in curve] == [0.4, None, None]
    assert [r["evaluate_seconds"] for r in curve] == [4.0, None, 2.0]


def test_a_table_is_taken_apart_run_by_run() -> None:
    rows = [{"arm": "QB", "rate": 1e-4, "seed": s, "iteration": i} for i in (1, 0) for s in (0, 1)]
    runs = group_by_run(rows)
    assert list(runs) == [RunKey("QB", 1e-4, 0), RunKey("QB", 1e-4, 1)]
    assert [r["iteration"] for r in runs[RunKey("QB", 1e-4, 1)]] == [0, 1]
    assert RunKey("QB", 1e-5, 3).name == "QB-lr1e-05-seed3"
