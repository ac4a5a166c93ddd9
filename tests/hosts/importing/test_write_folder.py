"""The command from end to end: sources are told apart, faults are one line, nothing half-written,
and plan and report work on what was brought in."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts.importing.foreign import (
    areal_files,
    areal_task,
    prime_record,
    trl_file,
    verl_file,
    write_lines,
)
from hosts.importing.foreign_dumps import write_miles_dumps, write_slime_dump
from hosts.importing.foreign_ms_swift import ms_swift_file
from hosts.importing.foreign_nemo_rl import nemo_rl_file
from hosts.importing.foreign_tinker import summary_record, tinker_run
from report.synthetic import Page

from counterpoise.batch.plan_file import plan_file
from counterpoise.cli import main
from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import recognise_source
from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.lab.choose_page import write_report
from counterpoise.report.audit.run_files import RunFiles
from counterpoise.store.folder import RunFolder
from counterpoise.store.rollout_files import read_groups
from counterpoise.variants import IMPORTERS


def prime_file(folder: Path) -> Path:
    records = [prime_record([5, 6], [7, 8 + i], float(i % 2)) for i in range(4)]
    return write_lines(folder / "token_exports" / "step_0" / "rank_0.jsonl", records)


def poise(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["poise", *map(str, arguments)])
    try:
        main()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


WRITERS = {
    "TRL": trl_file, "verl": verl_file, "prime-rl": prime_file, "ms-swift": ms_swift_file,
    "NeMo-RL": nemo_rl_file, "AReaL": areal_files,
}  # fmt: skip


@pytest.mark.parametrize("title", WRITERS)
def test_import_plan_report(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    title: str,
) -> None:
    WRITERS[title](tmp_path / "run")
    out = tmp_path / "new" / "out"
    assert poise(monkeypatch, "import", tmp_path / "run", "-o", out, "--tokenizer", "embedded") == 0
    content = capsys.readouterr().out
    assert content.startswith(f"{title}: 1 step, 4 rollouts of ")
    assert json.loads((out / "imported.json").read_text())["source"] == title
    (rollouts,) = (out / "rollouts").iterdir()
    planned = plan_file(rollouts, "whole", 1, 0)
    assert planned["steps"] == [[0, 1, 2, 3]]
    assert planned["describe"]["max_abs_group_advantage_sum"] < 1e-6
    page = Page(write_report(out))
    # prime-rl's files say which sequences shared a step.
    planned = title == "prime-rl"
    # It has no tokens and was not measured: these sections say what to do.
    plan_sections = ["mosaic", "tokens", "monitor", "plans"] if planned else []
    assert page.sections == ["learning", *plan_sections, "rollouts", "words"]
    text = " ".join(page.text.split())
    assert (f"A run of {title}" if planned else f"Rollouts written by {title}") in text
    assert re.search("rollouts ?4 ?(optimizer steps|groups)", text)
    assert ("reference 3" in text) == (title == "verl")
    assert not list(tmp_path.rglob("*.part"))


def test_a_folder_is_claimed_by_one_source(tmp_path: Path) -> None:
    folders = {title: tmp_path / title for title in (*WRITERS, "slime", "miles", "tinker-cookbook")}
    for title, write in WRITERS.items():
        write(folders[title])
    write_slime_dump(folders["slime"])
    write_miles_dumps(folders["miles"])
    tinker_run(folders["tinker-cookbook"])
    for title, folder in folders.items():
        assert recognise_source(folder)[0].title == title


def test_without_texts_the_report_shows_none(tmp_path: Path) -> None:
    prime_file(tmp_path / "run")
    import_run(tmp_path / "run", tmp_path / "out")
    assert "rollouts" not in Page(write_report(tmp_path / "out")).sections


def empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def mixed(folder: Path) -> Path:
    verl_file(folder)
    prime_file(folder)
    return folder


def cut(folder: Path) -> Path:
    file = verl_file(folder)
    file.write_bytes(file.read_bytes()[:-9])
    return folder


def blank(folder: Path) -> Path:
    return write_lines(folder / "1.jsonl", []).parent


def lacking(folder: Path) -> Path:
    return write_lines(folder / "1.jsonl", [{"input": "", "output": "", "step": 1}]).parent


def array(folder: Path) -> Path:
    return write_lines(folder / "1.jsonl", [[1, 2]]).parent


def test_help_lists_every_format(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert poise(monkeypatch, "import", "--help") == 0
    content = capsys.readouterr().out
    assert all(name in content for name in IMPORTERS)


def test_files_are_recognised_by_content(tmp_path: Path) -> None:
    """Files of other names, all in one folder: each is read by its own importer."""
    files = {
        "verl": verl_file(tmp_path / "a").rename(tmp_path / "one.jsonl"),
        "prime-rl": prime_file(tmp_path / "b").rename(tmp_path / "two.jsonl"),
        "TRL": trl_file(tmp_path / "c").rename(tmp_path / "three.parquet"),
        "slime": write_slime_dump(tmp_path / "d").rename(tmp_path / "four.pt"),
        "miles": write_miles_dumps(tmp_path / "e")[0].rename(tmp_path / "five.pt"),
        "AReaL": areal_task(tmp_path / "h").rename(tmp_path / "nine.jsonl"),
        "ms-swift": ms_swift_file(tmp_path / "f").rename(tmp_path / "eight.jsonl"),
        "tinker-cookbook": write_lines(tmp_path / "six.jsonl", [summary_record(0, 0, 1.0)]),
        "NeMo-RL": nemo_rl_file(tmp_path / "g").rename(tmp_path / "seven.jsonl"),
        "Counterpoise": write_lines(
            tmp_path / "7.jsonl", [{"prompt_id": "p", "reward": 1.0, "num_tokens": 3}]
        ),
        "your own trainer": write_lines(
            tmp_path / "log.jsonl", [{"question": "?", "output": "!", "score": 0.5}]
        ),
    }
    for title, file in files.items():
        assert recognise_source(file)[0].title == title
    # verl's files are named by a number too.
    areal = areal_task(tmp_path / "g", task=42)
    for path in (areal, areal.parent, areal.parents[1], areal.parents[2]):
        assert recognise_source(path)[0].title == "AReaL"
    with pytest.raises(PoiseError, match="holds no rollouts that can be read"):
        recognise_source(write_lines(tmp_path / "notes.jsonl", [{"text": "hello"}]))


T = ("--tokenizer", "embedded")
FAULTS: dict[str, tuple[Callable[[Path], Path], tuple[str, ...], str]] = {
    "empty folder": (empty, (), "holds no rollouts that can be read"),
    "no such folder": (lambda folder: folder, (), "does not exist: check the path"),
    "mixed sources": (mixed, T, "holds rollouts of verl and of prime-rl: choose by --from verl"),
    "ms-swift's as verl's": (ms_swift_file, ("--from", "verl"), "holds no rollouts of verl"),
    "another source": (verl_file, ("--from", "trl"), "holds no rollouts of TRL"),
    "unknown source": (verl_file, ("--from", "trll"), "did you mean 'trl'?"),
    "truncated line": (cut, T, "line 4: not JSON"),
    "missing field": (lacking, T, "line 1: no 'score' (fields: input, output, step)"),
    "no object": (array, T, "line 1: not a JSON object"),
    "empty file": (blank, T, "the files of verl are empty"),
    "no tokenizer": (verl_file, (), "verl wrote texts without token counts"),
    "unknown tokenizer": (verl_file, ("--tokenizer", "no/such/one"), "no tokenizer 'no/such/one'"),
    "reward columns": (verl_file, (*T, "--reward", "score"), "--reward names columns of tables"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    make, options, message = FAULTS[name]
    path = make(tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    assert poise(monkeypatch, "import", path, "--out", tmp_path / "out", *options) == 2
    content = capsys.readouterr().err
    assert message in content
    assert content.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_mixed_folder_can_be_read_by_name(tmp_path: Path) -> None:
    mixed(tmp_path / "run")
    assert import_run(tmp_path / "run", tmp_path / "out", "prime-rl").source == "prime-rl"


def test_a_folder_that_is_taken_stays_as_it_is(tmp_path: Path) -> None:
    prime_file(tmp_path / "run")
    import_run(tmp_path / "run", tmp_path / "out")
    with pytest.raises(PoiseError, match="already holds imported rollouts: choose another --out"):
        import_run(tmp_path / "run", tmp_path / "out")
    (tmp_path / "free").mkdir()
    import_run(tmp_path / "run", tmp_path / "free")
    assert (tmp_path / "free" / "imported.json").is_file()


def test_a_damaged_import_says_so(tmp_path: Path) -> None:
    prime_file(tmp_path / "run")
    import_run(tmp_path / "run", tmp_path / "out")
    (tmp_path / "out" / "imported.json").write_text("{}")
    with pytest.raises(PoiseError, match="import the run again"):
        write_report(tmp_path / "out")


@pytest.mark.parametrize("name", WRITERS)
def test_a_report_of_what_was_not_imported_says_how(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / "run")
    said = f"run holds rollouts written by {name}: run poise import .* --out DIR"
    with pytest.raises(PoiseError, match=said):
        write_report(tmp_path / "run")
    with pytest.raises(PoiseError, match=f"{said}, then poise audit DIR"):
        RunFiles.read(tmp_path / "run")


def test_advantages_are_stored_where_no_plan_has_them(tmp_path: Path) -> None:
    advantages = [0.25, -0.25, -0.5, 0.5]
    trl_file(tmp_path / "trl", advantage=advantages)
    import_run(tmp_path / "trl", tmp_path / "out", tokenizer="embedded")
    assert [line["advantage"] for line in RunFolder(tmp_path / "out").read_rollouts(1)] == (
        advantages
    )
    with pytest.raises(PoiseError, match="miles, NeMo-RL and runs of Counterpoise store them"):
        read_groups(tmp_path / "out")
    prime_file(tmp_path / "prime")
    import_run(tmp_path / "prime", tmp_path / "planned")
    assert not any("advantage" in line for line in RunFolder(tmp_path / "planned").read_rollouts(0))


def test_empty_files_and_empty_responses_are_counted(tmp_path: Path) -> None:
    verl_file(tmp_path / "run", 1)
    (tmp_path / "run" / "2.jsonl").touch()
    notes = import_run(tmp_path / "run", tmp_path / "first", tokenizer="embedded").notes
    assert "left out because nothing is in them: 1 file (run/2.jsonl)" in notes
    trl_file(tmp_path / "trl", completions=("3", "", "5", ""))
    notes = import_run(tmp_path / "trl", tmp_path / "second", tokenizer="embedded").notes
    assert "counted as one end token each: 2 empty responses" in notes


def test_a_folder_above_runs_names_them(tmp_path: Path) -> None:
    for number in range(1, 11):
        nemo_rl_file(tmp_path / "logs" / f"exp_{number:03d}")
    ms_swift_file(tmp_path / "above" / "below" / "run")
    trl_file(tmp_path / "single" / "run")
    with pytest.raises(PoiseError) as several:
        recognise_source(tmp_path / "logs")
    assert "; 10 folders below it do: exp_001 (NeMo-RL), exp_002 (NeMo-RL), " in str(several.value)
    assert " and 2 more. Import each by itself, as poise import " in str(several.value)
    one = f"single/run holds those of TRL: poise import {tmp_path}/single/run"
    for name in (None, "trl"):
        with pytest.raises(PoiseError, match=one):
            recognise_source(tmp_path / "single", name)
    # A folder of which the run lies deeper than that.
    with pytest.raises(PoiseError, match="holds those of ms-swift"):
        recognise_source(tmp_path / "above")
