"""Names, ids, paths and values that try to control the terminal: every command shows them as text,
and a fault stays one line of bounded length."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from pathlib import Path

import pytest
from faults import GOOD, ROLLOUT, SMALL

from counterpoise.cli import main
from counterpoise.config.load import config_from_tables, to_toml
from counterpoise.terminal import CONTROL_CATEGORIES, LONGEST_MESSAGE

# Escape sequences, C1 controls, movements of the cursor, an override of direction, rich's markup.
HOSTILE = "\x1b]0;x\x07\x1b[2J\x9b31m\r\b\u202e[red]\x7f"
TWO_LINES = "a\nb"
GIANT = "g" * 5000


def as_json(**record: object) -> str:
    return json.dumps(record) + "\n"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "w"
    folder.mkdir()
    for name, text in (("hostile", HOSTILE), ("lines", TWO_LINES), ("giant", GIANT)):
        record = {"id": text, "problem": "1 + 1 = ?", "answer": "2"}
        (folder / f"{name}_id.jsonl").write_text(2 * as_json(**record))
        (folder / f"{name}_field.jsonl").write_text(as_json(**{"id": "a", text: 1}))
        (folder / f"{name}_row.jsonl").write_text(as_json(**{"prompt_id": "a", text: 1}))
        (folder / f"{name}_reward.jsonl").write_text(as_json(prompt_id="a", reward=text))
        (folder / f"{name}_option.toml").write_text(f"[loop]\n{json.dumps(text)} = 1\n")
        steps = folder / f"{name}_verl"
        steps.mkdir()
        foreign = {"input": "a", "output": "b", "score": text, "step": 1}
        (steps / "1.jsonl").write_text(as_json(**foreign))
    (folder / "small.toml").write_text(to_toml(config_from_tables(SMALL)))
    (folder / "good.jsonl").write_text(GOOD + "\n" + GOOD.replace("1 +", "2 +") + "\n")
    (folder / "rows.jsonl").write_text(ROLLOUT + "\n")
    monkeypatch.chdir(tmp_path)
    return folder


def poise(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["poise", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


def controls(text: str) -> set[str]:
    return {c for c in text if c != "\n" and unicodedata.category(c) in CONTROL_CATEGORIES}


JSONL = "train w/small.toml --out o -s task.name=jsonl -s task.path=w/"
IMPORT = "import w/{name}_verl --out o --tokenizer embedded"
# {x}: the text itself; {name}: of the files that hold it. Arguments are split at blanks.
FAULTS = {
    "command": "{x}",
    "option of a command": "plan w/rows.jsonl --{x}",
    "number": "plan w/rows.jsonl -k {x}",
    "preset": "train {x} --out o",
    "section": "train w/small.toml --out o --set {x}.a=1",
    "option": "train w/small.toml --out o --set loop.{x}=1",
    "value": "train w/small.toml --out o --set task.name={x}",
    "word for a number": "train w/small.toml --out o --set loop.seed={x}",
    "own function": "train w/small.toml --out o --set verify.name={x}.py:f",
    "model": "train w/small.toml --out o --set model.name={x}",
    "engine": "train w/small.toml --out o --engine {x}",
    "run file": "train w/{name}_option.toml --out o",
    "id": JSONL + "{name}_id.jsonl",
    "field": JSONL + "{name}_field.jsonl",
    "field's name": JSONL + "good.jsonl -s task.answer_field={x}",
    "data path": JSONL + "{x}",
    "plan: path": "plan {x}",
    "plan: field": "plan w/{name}_row.jsonl",
    "plan: reward": "plan w/{name}_reward.jsonl",
    "plan: composer": "plan w/rows.jsonl -k 1 -c {x}",
    "report": "report {x}",
    "look": "look {x}",
    "credit": "credit {x} w",
    "credit: setting": "credit high_entropy w --settings {x}=1",
    "track": "track {x} --to tensorboard",
    "tracker": "track w --to {x}",
    "import: path": "import {x} --out o",
    "import: source": "import w --out o --from {x}",
    "import: score": IMPORT,
    "import: tokenizer": "import w/{name}_verl --out o --tokenizer {x}",
    "study": "study {x} --out o",
    "experiment": "experiment {x} --out o",
    "eval": "eval {x} --bench gsm8k --data w --out o",
    "contamination": "contamination -t w/{name}_field.jsonl -e w/good.jsonl",
    "verify-check": "verify-check {x}",
    "options": "options {x}",
    "track: out": "track w/none --to tensorboard --out {x}",
    "warmup": "warmup {x} --out o",
}


@pytest.mark.parametrize("name", ["hostile", "lines", "giant"])
@pytest.mark.parametrize("command", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_one_line_that_controls_nothing(
    command: str,
    name: str,
    world: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    text = {"hostile": HOSTILE, "lines": TWO_LINES, "giant": GIANT}[name]
    words = [word.replace("{x}", text).replace("{name}", name) for word in command.split()]
    code = poise(monkeypatch, *words)
    told = capfd.readouterr()
    assert not controls(told.err + told.out)
    if command.startswith("options") and code == 0:
        return  # a word of the text is the name of an option: that is a search with matches
    assert code == 2, told.err
    assert told.err.startswith("poise: ")
    assert told.err.count("\n") == 1
    assert len(told.err) <= LONGEST_MESSAGE + 1


LONG_PATHS = [
    "train w/small.toml --out {x}", "train --resume --out {x}", "demo --out {x}",
    "warmup w/small.toml --out {x}", "eval embedded --bench good --data w --out {x}",
    "eval embedded --bench good --data {x} --out o", "study proxy --out {x}",
    "study proxy --out o --rollouts {x}", "experiment smollm2-pilot --out {x}",
    "import w/hostile_verl --out {x} --tokenizer embedded", "bench --json {x}",
    "contamination -t w/good.jsonl -e w/good.jsonl -o {x}",
    "contamination -t w/good.jsonl -e w/good.jsonl --write-clean {x}",
    "contamination -t {x} -e w/good.jsonl", "verify-check --data {x}", "report w/run --out {x}",
    "report w/run {x}", "track w/run --to tensorboard --out {x}", "credit uniform {x}",
    "train w/small.toml --out o -s task.benchmarks=[{x}]",
    JSONL + "good.jsonl -s task.heldout_path={x}",
]  # fmt: skip


@pytest.mark.parametrize("command", LONG_PATHS)
def test_a_path_that_no_disk_takes_is_one_line(
    command: str, world: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Names have at most 255 bytes almost everywhere, and paths 4096."""
    run = world / "run"
    run.mkdir()
    (run / "config.toml").write_text(to_toml(config_from_tables(SMALL)))
    (run / "metrics.jsonl").write_text(as_json(iteration=1, success=0.5, reward=0.5, rollouts=8))
    for text in (GIANT, "a/" * 2500):
        code = poise(monkeypatch, *(word.replace("{x}", text) for word in command.split()))
        told = capfd.readouterr()
        assert code == 2, told.err
        assert told.err.startswith("poise: ")
        assert told.err.count("\n") == 1
    assert not (world.parent / "o").exists()


def test_files_with_hostile_names_appear_as_text(
    world: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In tables, where brackets would be markup, and in what a command prints at its end."""
    problems = [
        as_json(id=str(k), problem=f"Ana has {k} pens and buys {k + 7} more. How many?", answer=k)
        for k in range(3)
    ]
    file = world / f"{HOSTILE}.jsonl"
    file.write_text("".join(problems))
    rollouts = [as_json(prompt_id="a", reward=k % 2, num_tokens=3) for k in range(4)]
    (world / "rollouts.jsonl").write_text("".join(rollouts))
    (world / f"{HOSTILE}.py").write_text("def f(rows, num_steps, seed): return [range(len(rows))]")
    page = str(world / f"{HOSTILE}.html")
    monkeypatch.setenv("COLUMNS", "200")
    for arguments, shown in [
        (["contamination", "-t", str(file), "-e", str(file), "-o", page], r"page .*\\x1b\]0;x"),
        (["verify-check", str(file), "--items", "1", "--pairs", "1"], r"\[red\]"),
        (["plan", "w/rollouts.jsonl", "-k", "1", "-c", f"w/{HOSTILE}.py:f"], r"\\x1b\[2J.*\[red\]"),
    ]:
        assert poise(monkeypatch, *arguments) == 0, capfd.readouterr().err
        told = capfd.readouterr()
        assert not controls(told.out + told.err), arguments
        assert re.search(shown, told.out), told.out


def test_an_argument_that_is_not_utf8_is_refused_before_anything_is_written(
    world: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """safetensors cannot write to such a path, which came out after the training."""
    for arguments in (
        ["train", "w/small.toml", "--out", "o\udcff"],
        ["train", "w/small.toml", "--out", "o", "--set", "task.path=\udcff.jsonl"],
    ):
        assert poise(monkeypatch, *arguments) == 2
        told = capfd.readouterr().err
        assert re.fullmatch(r"poise: '.*\\udcff.*' is not UTF-8: choose another name\n", told)
    assert not list(world.parent.glob("o*"))
