from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from report.synthetic import Page, write_run

from counterpoise.lab.choose_page import write_report
from counterpoise.report.panels import monitor
from counterpoise.report.run_data import RunData


def values(figure_chart: object) -> list[dict[str, float]]:
    (first, *_) = figure_chart.to_dict()["datasets"].values()  # type: ignore[attr-defined]
    return first


def test_the_signs_stand_side_by_side(tmp_path: Path):
    panel = monitor.panel(RunData.read(write_run(tmp_path / "run")))
    assert panel is not None
    positive, negative, moved, *others = panel.body  # type: ignore[misc]
    assert (positive.title, negative.title) == (
        "Tokens of positive rollouts",
        "Tokens of negative rollouts",
    )
    assert positive.keys == negative.keys
    assert "46 percent boosted and 41 percent suppressed" in positive.chart.description
    assert "Δ log p" in moved.note
    assert len(others) == len(monitor.SHARE_METRICS) + len(monitor.SIZE_METRICS) == 10
    assert others[-1].title == "Drift between right answers"


def test_bands_add_up_to_one(tmp_path: Path):
    panel = monitor.panel(RunData.read(write_run(tmp_path / "run", tau=0.0)))
    assert panel is not None
    spec = panel.body[0].chart.to_dict()  # type: ignore[index]
    bands = [band for data in spec["datasets"].values() for band in data if "top" in band]
    tops = {band["field"]: band["top"] for band in bands if band["iteration"] == 4}
    assert tops["suppressed"] == 1.0
    assert tops["boosted"] == 0.46


def test_what_is_left_of_rounding_is_zero(tmp_path: Path):
    panel = monitor.panel(RunData.read(write_run(tmp_path / "run")))
    assert panel is not None
    (residual,) = (f for f in panel.body if f.title == "Advantage left on shared prefixes")
    assert {record["value"] for record in values(residual.chart)} == {0.0}


def test_types_are_shown_by_their_text(tmp_path: Path):
    page = Page(write_report(write_run(tmp_path / "run", pieces=("a", "b", "c", " ", "<b>"))))
    text = " ".join(page.text.split())
    assert "<b> 50.0 % 90 %" in text
    assert "· 30.0 % 25 %" in text  # a space, made visible
    assert "⟨999⟩ 20.0 % 0 %" in text  # unknown to the vocabulary


def test_a_word_and_the_same_after_a_space_are_told_apart(tmp_path: Path):
    pieces = ("a", "b", "c", " The", "The")
    text = " ".join(Page(write_report(write_run(tmp_path / "run", pieces=pieces))).text.split())
    assert "The 50.0 % 90 % ·The 30.0 % 25 %" in text


def test_an_update_without_right_rollouts_was_measured_all_the_same(tmp_path: Path):
    """W-REINFORCE trains on groups that failed as a whole."""
    run = RunData.read(write_run(tmp_path / "run", tau=0.0))
    fields = [f"{name}_positive" for name in ("boosted", "stable", "suppressed", "moved")]
    failed = replace(run, metrics=[record | dict.fromkeys(fields) for record in run.metrics])
    panel = monitor.panel(failed)
    assert panel is not None
    titles = [figure.title for figure in panel.body]  # type: ignore[union-attr]
    assert titles[0] == "Tokens of negative rollouts"
    bands = [band for band in values(panel.body[0].chart) if band["field"] == "boosted"]  # type: ignore[index]
    assert [band["iteration"] for band in bands] == [1, 2, 3, 4]


def test_a_run_without_the_monitor_says_so_and_names_the_command(tmp_path: Path):
    run = write_run(tmp_path / "run", microscope="off")
    panel = monitor.panel(RunData.read(run))
    assert panel is not None
    assert "No update was measured" in panel.caption
    assert "<code>poise replay run --model embedded --iterations 4 " in panel.caption
    assert "monitor" in Page(write_report(run)).sections
