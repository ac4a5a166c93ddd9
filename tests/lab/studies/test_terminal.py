"""`poise study` with several studies: one that fails or is late does not take the others along."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from lab.studies.test_run import agreeing

from counterpoise.errors import PoiseError
from counterpoise.files import folder_lock
from counterpoise.lab.studies import polarity, proxy, stored_rollouts, terminal
from counterpoise.lab.studies.coupling import measure
from counterpoise.lab.studies.descriptions import describe_study, list_studies
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.records import write_records
from counterpoise.lab.studies.selection import (
    EMBEDDED_ONLY,
    StudyLimits,
    parse_sizes,
    select_studies,
)
from counterpoise.lab.studies.study import Study, load_study
from counterpoise.report.charts.vega import javascript_bundle
from counterpoise.statistics.finding import Records
from counterpoise.variants import STUDIES

Measure = Callable[[Lab], Records]


def measures(lab: Lab) -> Records:
    lab.progress("half of it", 0.5)
    return agreeing(0.7)


def fails(lab: Lab) -> Records:
    raise RuntimeError("out of memory")


def has_no_signal(lab: Lab) -> Records:
    return []


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Studies by these names, judged as `proxy` is; returns the names that were measured."""

    def make(**measure: Measure) -> list[str]:
        asked: list[str] = []

        def load(name: str) -> Study:
            def counted(lab: Lab) -> Records:
                asked.append(name)
                return measure[name](lab)

            return replace(proxy.STUDY, name=name, measure=counted)

        monkeypatch.setattr(terminal, "load_study", load)
        monkeypatch.setattr("counterpoise.lab.studies.page.load_study", load)
        monkeypatch.setattr(Lab, "policy", property(lambda lab: None))
        monkeypatch.setattr(Lab, "release_memory", lambda lab: None)
        return asked

    return make


def run(names: str, out: Path, **limits: object) -> None:
    wanted = StudyLimits(**limits)  # type: ignore[arg-type]
    terminal.run_studies(names, "embedded", "quick", out, again=False, limits=wanted)


def test_a_study_that_fails_does_not_take_the_others_along(
    tmp_path: Path, made_up: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    made_up(a=fails, b=has_no_signal, c=measures)
    with pytest.raises(PoiseError, match="a, b failed, for the reasons above"):
        run("a,b,c", tmp_path)
    said = capsys.readouterr().out
    assert "RuntimeError: out of memory" in said
    assert "b failed: study b measured nothing" in said
    assert json.loads((tmp_path / "c.json").read_text())["verdict"] == "replicated"
    assert (tmp_path / "report.html").is_file()
    with pytest.raises(RuntimeError, match="out of memory"):  # alone it says all there is to say
        run("a", tmp_path)


def test_time_that_is_over_stops_what_runs_and_the_same_command_goes_on(
    tmp_path: Path, made_up: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = made_up(a=measures, b=measures)
    run("a", tmp_path)
    run("a,b", tmp_path, minutes=-1.0)  # what was measured before is judged and drawn
    said = capsys.readouterr().out
    assert "not finished in time: b; run the same command again to continue" in said
    assert asked == ["a"]
    run("a,b", tmp_path)
    assert asked == ["a", "b"]


def test_parts_that_again_has_measured_are_continued_without_again(
    tmp_path: Path, made_up: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    parts: list[str] = []
    late_after: list[str] = []

    def in_parts(lab: Lab) -> Records:
        for name in ("one", "two"):
            lab.measure_part(name, lambda name=name: parts.append(name) or agreeing(0.7))
            if name in late_after:
                raise terminal.OutOfTimeError
        return agreeing(0.7)

    def run_again(minutes: float | None = None) -> str:
        limits = StudyLimits(minutes=minutes)
        terminal.run_studies("a", "embedded", "quick", tmp_path, again=True, limits=limits)
        return capsys.readouterr().out

    made_up(a=in_parts)
    run("a", tmp_path)
    before = (tmp_path / "a.parquet").read_bytes()
    assert "not finished in time: a; run the same command again to continue" in run_again(-1.0)
    assert parts == ["one", "two"]
    late_after.append("one")
    assert "not finished in time: a; run it without --again to continue" in run_again()
    late_after.clear()
    assert parts == ["one", "two", "one"]
    assert (tmp_path / "a.parquet").read_bytes() == before
    run("a", tmp_path)
    assert parts == ["one", "two", "one", "two"]
    run("a", tmp_path)
    assert len(parts) == 4


def test_a_folder_in_use_is_refused(tmp_path: Path, made_up: Callable[..., list[str]]) -> None:
    asked = made_up(a=measures)
    with folder_lock(tmp_path), pytest.raises(PoiseError, match="written by another process"):
        run("a", tmp_path)
    assert asked == []


def test_stored_records_are_judged_without_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = tmp_path / "theirs.parquet", tmp_path / "out"
    settings = {"model": "theirs", "budget": "full", "set": ["task.size=9"]}
    write_records(table, agreeing(0.7), settings, 3.0, "proxy")
    terminal.judge_stored_records("proxy", table, out)
    assert "proxy (Fig. 10): replicated" in capsys.readouterr().out
    found = json.loads((out / "proxy.json").read_text())
    assert (found["model"], found["set"], found["seconds"]) == ("theirs", ["task.size=9"], 3.0)
    assert "task.size=9" in (out / "proxy.html").read_text()
    terminal.judge_stored_records("proxy", out / "proxy.parquet", out)
    for name, message in (
        ("polarity", "holds records of the study proxy"),
        ("proxy,polarity", "records of one study"),
    ):
        with pytest.raises(PoiseError, match=message):
            terminal.judge_stored_records(name, table, out)
    write_records(table, agreeing(0.6), settings, 3.0)
    with pytest.raises(PoiseError, match="holds other records: choose another --out"):
        terminal.judge_stored_records("proxy", table, out)
    with pytest.raises(PoiseError, match="no records that the study trace can judge: KeyError"):
        terminal.judge_stored_records("trace", table, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    with pytest.raises(PoiseError, match=r"theirs\.parquet cannot be used"):
        terminal.judge_stored_records("proxy", table, table)


def test_a_study_is_stopped_at_its_next_sign_of_progress(
    tmp_path: Path, made_up: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 0.0, 1.0, *[100.0] * 9])  # it begins in time, and is late half-way
    made_up(a=measures)
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))
    run("a", tmp_path, minutes=1.0)
    assert not (tmp_path / "a.parquet").exists()


def test_without_what_draws_the_numbers_are_kept_and_drawn_later(
    tmp_path: Path,
    made_up: Callable[..., list[str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = made_up(proxy=measures)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "vl_convert", None)
        without.delitem(sys.modules, "counterpoise.report.charts.figures", raising=False)
        javascript_bundle.cache_clear()
        run("proxy", tmp_path)
    said = capsys.readouterr().out.replace("\n", " ")
    assert "proxy: no figures, vl_convert is not installed;" in said
    assert "no report: vl_convert is not installed;" in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["proxy.json", "proxy.parquet"]
    run("proxy", tmp_path)
    assert (tmp_path / "proxy.png").is_file()
    assert asked == ["proxy"]


def test_other_sizes_and_options_are_other_settings(
    tmp_path: Path, made_up: Callable[..., list[str]]
) -> None:
    asked = made_up(a=measures)
    run("a", tmp_path, sizes=["batches=2"], overrides=["sample.max_new_tokens=128"])
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["sizes"] == {"prompts": 16, "batches": 2}
    assert found["set"] == ["sample.max_new_tokens=128"]
    run("a", tmp_path, sizes=["batches=2"])
    assert asked == ["a", "a"]
    assert "set" not in json.loads((tmp_path / "a.json").read_text())
    lab = Lab("embedded", "quick", tmp_path, options=("sample.max_new_tokens=128",))
    assert lab.config.sample.max_new_tokens == 128


@pytest.mark.parametrize("option", ["sample.group_size=4", "sample.temperature=0.6"])
def test_what_a_study_fixes_cannot_be_set(tmp_path: Path, option: str) -> None:
    with pytest.raises(PoiseError, match=f"remove {option}"):
        _ = Lab("embedded", "quick", tmp_path, options=(option,)).config


def test_another_model_is_named_with_its_own_option(tmp_path: Path) -> None:
    """The settings of the records would name the embedded model."""
    with pytest.raises(PoiseError, match=r"--set model\.name=out/warm: name the model .* --model"):
        _ = Lab("embedded", "quick", tmp_path, options=("model.name=out/warm",)).config


@pytest.mark.parametrize(
    ("text", "value"),
    [("collapse=2.5", 2.5), ("collapse=4", 4), ("rates=[1e-5]", [1e-5]), ('arms=["t2"]', ["t2"])],
)
def test_sizes_that_are_not_whole_numbers(text: str, value: object) -> None:
    budgets = [{"collapse": 3.0, "rates": [1e-4, 4e-4], "arms": ["t1", "t2"], "training": {"a": 1}}]
    name = text.partition("=")[0]
    assert parse_sizes([text], budgets) == {name: value}
    for wrong in ("collapse=much", "collapse=0", "collapse=Infinity"):
        with pytest.raises(PoiseError, match=r"must be a number above 0, such as collapse=3\.0"):
            parse_sizes([wrong], budgets)
    for wrong in ("rates=1e-5", "rates=[0]", "rates=[1e-5, 1e-5]"):
        with pytest.raises(PoiseError, match="must be a list of numbers above 0, each once"):
            parse_sizes([wrong], budgets)
    with pytest.raises(PoiseError, match="must be a list of names"):
        parse_sizes(['arms=["t3"]'], budgets)
    with pytest.raises(PoiseError, match="training is a table"):
        parse_sizes(["training=3"], budgets)


def test_sizes_are_of_the_kind_they_replace() -> None:
    budgets = [proxy.STUDY.budgets["full"], measure.STUDY.budgets["full"], {"batch": [16, 32]}]
    assert parse_sizes(["batches=4", "batch=[2, 4]"], budgets) == {"batches": 4, "batch": [2, 4]}
    for wrong in (
        "batches=many", "batch=[]", "batches=-1", "batches=0", "batches=4.5", "batch=4", "batches",
        "batch=[16, 0]",
    ):  # fmt: skip
        with pytest.raises(PoiseError, match=r"whole numbers? above 0"):
            parse_sizes([wrong], budgets)
    # 0 is a size where a budget has it; every budget must take the size.
    assert parse_sizes(["minutes=0"], [{"minutes": 0}]) == {"minutes": 0}
    with pytest.raises(PoiseError, match="of 0 or more, such as minutes=0"):
        parse_sizes(["minutes=-1"], [{"minutes": 0}])
    with pytest.raises(PoiseError, match="above 0, such as closed=2"):
        parse_sizes(["closed=0"], [{"closed": 2}, {"closed": 0}])
    with pytest.raises(PoiseError, match="did you mean 'batches'"):
        parse_sizes(["batchs=4"], budgets)


def test_which_studies_all_means() -> None:
    assert select_studies("all", "embedded", False) == list(STUDIES)
    assert set(STUDIES) - set(select_studies("all", "out/warm", False)) == set(EMBEDDED_ONLY)
    assert select_studies("all", "out/warm", True) == list(stored_rollouts.ROW_STUDIES)
    assert select_studies("proxy, polarity", "out/warm", False) == [
        proxy.STUDY.name,
        polarity.STUDY.name,
    ]
    with pytest.raises(PoiseError, match="value samples its own rollouts"):
        select_studies("proxy,value", "embedded", True)
    with pytest.raises(PoiseError, match="' , ' names no study"):
        select_studies(" , ", "embedded", False)


@pytest.mark.parametrize("name", STUDIES)
def test_the_list_says_what_the_study_says(name: str) -> None:
    """It is read off the file, not imported."""
    study, found = load_study(name), describe_study(name)
    assert (found.shows, found.claim) == (study.shows, study.claim)


def test_the_list_has_every_study(capsys: pytest.CaptureFixture[str]) -> None:
    list_studies()
    printed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[1:2] != " "]
    assert printed == ["study", *STUDIES]
