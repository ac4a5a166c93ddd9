"""A study that was stopped keeps its parts, and goes on with the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lab.studies.token_values import random_lab

from counterpoise.lab.studies import partial_results, polarity, proxy
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.partial_results import PartialResults
from counterpoise.lab.studies.records import read_records
from counterpoise.lab.studies.run import run_study
from counterpoise.lab.studies.study import Study
from counterpoise.statistics.finding import Finding, Record, Records

NAMES = ("a", "b", "c")


def in_parts(asked: list[str], stop_at: str = "") -> Study:
    """Two records a part, of different columns."""

    def one(name: str) -> list[Record]:
        asked.append(name)
        if name == stop_at:
            raise KeyboardInterrupt
        return [{"panel": "x", "of": name, "n": 1}, {"panel": "y", "share": 0.1, "ok": True}]

    def measure(lab: Lab) -> Records:
        return [r for name in NAMES for r in lab.measure_part(name, lambda name=name: one(name))]

    return replace(
        proxy.STUDY,
        measure=measure,
        judge=lambda records: Finding("inconclusive", "", ()),
        draw=lambda records: (),
    )


def run(study: Study, lab: Lab, again: bool = False) -> None:
    run_study(study, lab, lambda _: None, again=again)


def test_what_was_stopped_goes_on_and_comes_to_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counterpoise.lab.studies.run._write_figures", lambda *_: None)
    asked: list[str] = []
    stopped, whole = (Lab("embedded", "quick", out) for out in (tmp_path, tmp_path / "whole"))
    whole.out.mkdir()
    with pytest.raises(KeyboardInterrupt):
        run(in_parts(asked, stop_at="c"), stopped)
    assert (tmp_path / "proxy.part.parquet").is_file()
    assert not (tmp_path / "proxy.parquet").exists()
    run(in_parts(asked), stopped)
    assert asked == ["a", "b", "c", "c"]
    assert not (tmp_path / "proxy.part.parquet").exists()
    run(in_parts([]), whole)
    found, wanted = (read_records(each.out / "proxy.parquet") for each in (stopped, whole))
    assert found is not None
    assert wanted is not None
    assert found[0] == wanted[0]

    with pytest.raises(KeyboardInterrupt):
        run(in_parts(asked, stop_at="b"), stopped, again=True)
    asked.clear()
    run(in_parts(asked), stopped, again=True)
    assert asked == ["a", "b", "c"]


def test_parts_of_other_settings_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial_results, "SAVE_INTERVAL", -1.0)  # saved after every part
    kept = PartialResults(tmp_path / "x.part.parquet", {"budget": "quick"})
    assert kept("a", lambda: [{"n": 1}]) == [{"n": 1}]
    same = PartialResults(tmp_path / "x.part.parquet", {"budget": "quick"})
    assert same("a", lambda: [{"n": 2}]) == [{"n": 1}]
    other = PartialResults(tmp_path / "x.part.parquet", {"budget": "full"})
    assert other("a", lambda: [{"n": 2}]) == [{"n": 2}]
    for budget, number in (("quick", 1), ("full", 2)):  # neither replaced the other
        kept = PartialResults(tmp_path / "x.part.parquet", {"budget": budget})
        assert kept("a", lambda: [{"n": 3}]) == [{"n": number}]


@pytest.mark.parametrize("study", [proxy.STUDY, polarity.STUDY], ids=lambda s: s.name)
def test_batches_do_not_depend_on_each_other(study: Study, tmp_path: Path) -> None:
    """The second batch alone is what it is after the first."""
    both = list(study.measure(random_lab(tmp_path, prompts=2, batches=2)))
    again = random_lab(tmp_path, prompts=2, batches=2)
    again._groups, again._rows = {}, {}  # the second batch is sampled without the first
    first = [r for r in both if r["batch"] == 1]
    again.measure_part = lambda name, measure: first if name == "batch 1" else measure()
    assert list(study.measure(again)) == both
