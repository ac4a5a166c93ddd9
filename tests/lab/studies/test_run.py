"""What `poise study` leaves behind, and what it does not do twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from counterpoise.errors import PoiseError
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.proxy import STUDY
from counterpoise.lab.studies.records import read_records, write_records
from counterpoise.lab.studies.run import BUDGETS, run_study, study_settings, write_finding
from counterpoise.lab.studies.study import Study, load_study
from counterpoise.statistics.finding import Finding, Number, Records
from counterpoise.variants import STUDIES

SUFFIXES = ("parquet", "json", "svg", "png", "html")


def counted(records: Records, calls: list[str]) -> Study:
    def measure(lab: Lab) -> Records:
        calls.append(str(lab.sizes["prompts"]))
        return records

    return replace(STUDY, measure=measure)


def agreeing(share: float) -> list[dict[str, object]]:
    """Sixteen prompts a batch, 100 tokens each."""
    return [
        {
            "optimizer": optimizer, "batch": 1, "prompt": f"1:{p}", "tokens": 100,
            "agree": round(100 * share) + (p % 3) - 1,
        }
        for optimizer in ("sgd", "adamw")
        for p in range(16)
    ]  # fmt: skip


def test_a_study_leaves_table_verdict_and_figures_and_is_measured_once(tmp_path: Path) -> None:
    calls: list[str] = []
    study, lab = counted(agreeing(0.7), calls), Lab("embedded", "quick", tmp_path)
    first = run_study(study, lab, lambda _: None)
    assert {f"proxy.{s}" for s in SUFFIXES} <= {p.name for p in tmp_path.iterdir()}
    assert run_study(study, lab, lambda _: None) == first
    assert calls == ["16"]
    found = json.loads((tmp_path / "proxy.json").read_text())
    assert found["verdict"] == "replicated"
    assert found["rule"] == STUDY.rule
    assert [n["paper"] for n in found["numbers"]] == [0.7, 0.7]
    assert "<svg" in (tmp_path / "proxy.svg").read_text()
    run_study(study, lab, lambda _: None, again=True)
    assert calls == ["16", "16"]


def test_other_settings_are_measured_again(tmp_path: Path) -> None:
    calls: list[str] = []
    study = counted(agreeing(0.7), calls)
    for budget in BUDGETS:
        run_study(study, Lab("embedded", budget, tmp_path), lambda _: None)
    assert calls == ["16", "64"]
    quick = study_settings(study, Lab("embedded", "quick", tmp_path))
    assert read_records(tmp_path / "proxy.parquet", quick) is None
    # Neither table is lost: each comes back when its settings do.
    for budget in (*BUDGETS, *BUDGETS):
        lab = Lab("embedded", budget, tmp_path)
        run_study(study, lab, lambda _: None)
        assert read_records(tmp_path / "proxy.parquet", study_settings(study, lab)) is not None
    assert calls == ["16", "64"]
    assert len(list(tmp_path.glob("proxy-*.parquet"))) == 1


def test_other_weights_at_the_same_path_are_measured_again(tmp_path: Path) -> None:
    calls: list[str] = []
    study, model = counted(agreeing(0.7), calls), tmp_path / "model"
    model.mkdir()
    (tmp_path / "out").mkdir()
    for weights in (b"first", b"first", b"second"):
        (model / "model.safetensors").write_bytes(weights)
        run_study(study, Lab(str(model), "quick", tmp_path / "out"), lambda _: None)
    assert calls == ["16", "16"]
    # Tables of earlier versions do not name the weights, and are used.
    settings = Lab(str(model), "quick", tmp_path).source_settings
    unnamed = {name: value for name, value in settings.items() if name != "weights"}
    write_records(tmp_path / "old.parquet", [{"x": 1}], unnamed, 1.0)
    assert read_records(tmp_path / "old.parquet", settings) == ([{"x": 1}], 1.0)


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [{"panel": "a", "x": 1.5, "ok": True}, {"panel": "b", "n": 3}]
    study = replace(
        counted(rows, []),
        judge=lambda records: Finding("inconclusive", "", (Number("x", float("nan")),)),
    )
    settings = study_settings(study, Lab("embedded", "quick", tmp_path))
    write_records(tmp_path / "x.parquet", rows, settings, 2.0)
    saved = read_records(tmp_path / "x.parquet", settings)
    assert saved == (
        [
            {"panel": "a", "x": 1.5, "ok": True, "n": None},
            {"panel": "b", "x": None, "ok": None, "n": 3},
        ],
        2.0,
    )
    write_finding(tmp_path / "x.json", study, study.judge(rows), settings, 2.0)
    assert json.loads((tmp_path / "x.json").read_text())["numbers"][0]["value"] is None
    assert pq.read_schema(tmp_path / "x.parquet").metadata[b"counterpoise_schema"] == b"1"


def test_nothing_measured_and_a_damaged_table_are_said_in_a_line(tmp_path: Path) -> None:
    lab = Lab("embedded", "quick", tmp_path)
    with pytest.raises(PoiseError, match="no signal"):
        run_study(counted([], []), lab, lambda _: None)
    (tmp_path / "proxy.parquet").write_bytes(b"PAR1 not at all")
    with pytest.raises(PoiseError, match="remove it to measure again"):
        run_study(counted(agreeing(0.7), []), lab, lambda _: None)


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.7, "replicated"), (0.5, "not replicated"), (0.6, "inconclusive")]
)
def test_the_rule_of_the_proxy_study(share: float, verdict: str) -> None:
    assert STUDY.judge(agreeing(share)).verdict == verdict


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_says_what_it_shows_and_by_which_rule(name: str) -> None:
    study = load_study(name)
    assert study.name == name
    assert set(study.budgets) == set(BUDGETS)
    assert "eplicated" in study.rule
    assert study.claim
    assert study.shows
