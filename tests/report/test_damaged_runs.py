"""Run folders that a crash, an editor or another tool damaged: every command that reads one shows
what it can (exit code 0) or says in one line what is wrong (2); none ends in a traceback."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from report.synthetic import write_run

from counterpoise.cli import main
from counterpoise.store.folder import IMPORTED

DEEP = "[" * 100_000
VALUES: tuple[Any, ...] = (
    None, "x", "\ud800", [], {}, [[1]], [None], -1, 0, 2**40, 10**400, 1e308, float("nan"), True,
)  # fmt: skip
LINES = ("[]", "3", "null", '"x"', "{}", DEEP, '{"iteration": "x"}', '{"iteration": 1}', "\x00")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("made") / "run", tau=0.0)


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


Outcome = tuple[int, str]


@pytest.fixture
def poise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["poise", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        code, told = int(stopped.value.code or 0), capsys.readouterr().err
        assert code in (0, 2)
        if code:
            assert re.fullmatch(r"poise: .*\n", told)
        return code, told

    return call


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("log", ["metrics", "plans", "evaluations"])
def test_a_line_that_is_no_record_is_named(
    run: Path, poise: Callable[..., Outcome], log: str, line: str
) -> None:
    file = run / f"{log}.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], line, *lines[1:]]) + "\n")
    for command in ("report", "look"):
        code, told = poise(command, run)
        if line != '{"iteration": 1}':  # a record that lacks what a panel asks for, or is short
            assert code == 2
            assert f"{log}.jsonl is damaged: line 2: " in told


@pytest.mark.parametrize("name", ["metrics.jsonl", "plans.jsonl", "config.toml", "vocabulary.json"])
def test_a_folder_in_the_place_of_a_file(
    run: Path, poise: Callable[..., Outcome], name: str
) -> None:
    (run / name).unlink()
    (run / name).mkdir()
    for command in ("report", "look"):
        poise(command, run)


@pytest.mark.parametrize(
    ("log", "field", "value", "told"),
    [
        ("metrics", "success", "x", 'success "x" is not a number'),
        ("metrics", "rollouts", 10**400, "rollouts 0x"),
        ("metrics", "iteration", -1, "iteration -1 is not a whole number of 0 or more"),
        ("evaluations", "mean", {}, "mean {} is not a number"),
        ("plans", "steps", [[99]], "steps holds something that is not a list of rows"),
        ("plans", "group", [], "group, index, advantage, tokens, born differ in length"),
        (
            "plans",
            "groups",
            [],
            "group holds a value that is not a whole number of 0 or more",
        ),
        ("plans", "describe", 3, "describe is not an object"),
        ("plans", "born", None, "born is not a list"),
    ],
)
def test_a_value_that_nobody_can_compute_with_is_named(
    run: Path, poise: Callable[..., Outcome], log: str, field: str, value: object, told: str
) -> None:
    file = run / f"{log}.jsonl"
    first, *others = file.read_text().splitlines()
    file.write_text("\n".join([json.dumps({**json.loads(first), field: value}), *others]) + "\n")
    code, line = poise("report", run)
    assert code == 2
    assert f"{log}.jsonl is damaged: line 1: {told}" in line


def test_a_record_without_what_a_panel_needs_is_one_line(
    run: Path, poise: Callable[..., Outcome]
) -> None:
    for log, field in (("metrics", "success"), ("evaluations", "low")):
        file = run / f"{log}.jsonl"
        records = [json.loads(line) for line in file.read_text().splitlines()]
        records[0].pop(field)
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        code, told = poise("report", run)
        assert code == 2
        assert f"{run} is damaged, or another version wrote it: KeyError: '{field}'" in told


def test_nesting_without_end_is_one_line_wherever_json_is_read(
    run: Path, poise: Callable[..., Outcome]
) -> None:
    step = run / "rollouts" / "step_00001.jsonl"
    kept = step.read_text()
    step.write_text(DEEP + "\n")
    assert poise("credit", "uniform", run, "--iteration", 1)[0] == 2
    assert poise("plan", step)[0] == 2
    assert poise("report", run)[0] == 0  # shows the others
    step.write_text(kept)
    for name in ("vocabulary.json", "contamination.json"):
        shutil.copy(run / name, run / "kept")
        (run / name).write_text(DEEP)
        assert poise("report", run)[0] == 2
        shutil.move(run / "kept", run / name)
    (run / IMPORTED).write_text(DEEP)
    (run / "config.toml").unlink()
    for command in ("report", "look"):
        assert poise(command, run)[0] == 2


def change_json(value: Any, rng: random.Random) -> Any:
    """Remove or replace something, at any depth."""
    if isinstance(value, dict | list) and value and rng.random() < 0.8:
        places = list(value) if isinstance(value, dict) else range(len(value))
        place, chance = rng.choice(list(places)), rng.random()
        if chance < 0.3:
            del value[place]
        else:
            value[place] = change_json(value[place], rng) if chance < 0.6 else rng.choice(VALUES)
        return value
    return rng.choice(VALUES)


def change_parquet(file: Path, rng: random.Random) -> None:
    table = pq.read_table(file)
    size, name = len(table), rng.choice(table.column_names)
    column = rng.choice(
        [
            pa.array(["x"] * size), pa.nulls(size), pa.array([[1]] * size), pa.array([-1] * size),
            pa.array([{"a": 1}] * size), pa.array([float("nan")] * size), pa.array([2**40] * size),
            pa.array([True] * size), pa.array([b"\xff"] * size),
        ]
    )  # fmt: skip
    changed = table.set_column(table.column_names.index(name), name, column)
    pq.write_table(rng.choice([changed, changed, table.drop_columns([name]), table[:0]]), file)


def damage(file: Path, rng: random.Random) -> None:
    """As a full disk, a bad copy or another tool would."""
    content = file.read_bytes()
    if rng.random() < 0.3:
        cut = rng.randrange(len(content))
        file.write_bytes(rng.choice([b"", content[:cut], content[:cut] + b"\xff" + content[cut:]]))
    elif file.suffix == ".parquet":
        change_parquet(file, rng)
    elif file.suffix == ".toml":
        lines = content.decode().splitlines()
        place = rng.randrange(len(lines))
        lines[place] = lines[place].partition("=")[0] + rng.choice(["= -1", "= 'x'", "= []", ""])
        file.write_text("\n".join(lines))
    else:
        lines = content.decode().splitlines()
        place = rng.randrange(len(lines))
        lines[place] = json.dumps(change_json(json.loads(lines[place]), rng))
        file.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("seed", range(60))
def test_random_damage_never_ends_in_a_traceback(
    run: Path, poise: Callable[..., Outcome], seed: int
) -> None:
    rng = random.Random(seed)
    damage(rng.choice([file for file in sorted(run.rglob("*")) if file.is_file()]), rng)
    poise("look", run)
    poise("credit", "uniform", run)
    poise("plan", run / "rollouts" / "step_00001.jsonl", "-k", 1, "-c", "shuffled")
    if seed < 12:  # these take longer
        poise("report", run)
