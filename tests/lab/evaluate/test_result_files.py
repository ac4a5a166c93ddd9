"""Files of results: whole lines, headers that must agree, and what a crash leaves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_results import HEADER, cell, evaluation, judged

from counterpoise.errors import PoiseError
from counterpoise.lab.evaluate.result_files import (
    ResultFile,
    read_order,
    read_result_file,
    read_result_files,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = cell(tmp_path, {"p1": [1, 0], "p2": [0, 0]})
    assert made.path == tmp_path / "results/a/aime24@0.6-0.95.jsonl"
    header, done = read_result_file(made.path)
    assert (header, done) == (made.header, made.judged)
    assert list(done) == ["p1", "p2"]


@pytest.mark.parametrize("cut", [1, 20, 4000])
def test_half_a_line_is_cut_off(tmp_path: Path, cut: int) -> None:
    made = cell(tmp_path, {"p1": [1, 0], "p2": [0, 0]})
    content = made.path.read_bytes()
    last = content.rstrip(b"\n").rfind(b"\n") + 1
    made.path.write_bytes(content[: max(last, len(content) - cut)])
    again = ResultFile(tmp_path, made.header)
    again.open()
    assert list(again.judged) == ["p1"]
    again.write(judged("p2", [0, 0]))
    assert made.path.read_bytes() == content


def test_half_a_header_is_begun_anew(tmp_path: Path) -> None:
    made = cell(tmp_path, {"p1": [1, 0]})
    made.path.write_bytes(b'{"schema": 1, "mod')
    again = ResultFile(tmp_path, made.header)
    again.open()
    assert again.judged == {}
    again.write(judged("p1", [1, 0]))
    assert read_result_file(made.path) == (made.header, made.judged)


def test_other_settings_are_never_mixed_in(tmp_path: Path) -> None:
    made = cell(tmp_path, {"p1": [1, 0]})
    with pytest.raises(PoiseError, match=r"was made with weights='0', not '1': choose another"):
        ResultFile(tmp_path, replace(made.header, weights="1")).open()
    ResultFile(
        tmp_path, replace(made.header, name="moved/model")
    ).open()  # where it lies is no matter


@pytest.mark.parametrize("line", ["{}", '{"schema": 2}', "[1]", "no JSON"])
def test_damage_is_one_line(tmp_path: Path, line: str) -> None:
    made = cell(tmp_path, {"p1": [1, 0]})
    made.path.write_text(line + "\n", encoding="utf-8")
    with pytest.raises(PoiseError, match="is damaged"):
        ResultFile(tmp_path, made.header).open()


def test_the_order_is_that_of_the_calls(tmp_path: Path) -> None:
    first = [cell(tmp_path, {"p": [1]}, model=m, benchmark=b) for m in "ba" for b in ("z", "y")]
    evaluation(tmp_path, first)
    evaluation(tmp_path, [cell(tmp_path, {"p": [1]}, model="c", benchmark="z")])
    assert read_order(tmp_path)["models"] == ["b", "a", "c"]
    found = [(c.header.model, c.header.benchmark) for c in read_result_files(tmp_path)]
    assert found == [("b", "z"), ("b", "y"), ("a", "z"), ("a", "y"), ("c", "z")]


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cell(tmp_path, {"p1": [1, 0]})
    content = made.path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("counterpoise.lab.evaluate.result_files.append_line", full)
    with pytest.raises(PoiseError, match=r"No space left.*the same command again"):
        made.write(judged("p2", [1, 1]))
    assert made.path.read_bytes() == content
    assert HEADER.file == "results/a/aime24@0.6-0.95.jsonl"


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        (1, "rewards", [1]), (1, "votes", {"a": 1}), (1, "tokens", ["x", 1]), (1, "finished", None),
        (1, "responses", [1, 2]), (1, "id", 3), (0, "temperature", "x"), (0, "samples", [2]),
    ],
)  # fmt: skip
def test_values_that_poise_eval_does_not_write_are_refused(
    tmp_path: Path, line: int, field: str, value: object
) -> None:
    made = cell(tmp_path, {"p1": [1, 0]})
    records = [json.loads(text) for text in made.path.read_text().splitlines()]
    records[line][field] = value
    made.path.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(PoiseError, match=f"is damaged: '{field}' .*; remove it to evaluate again"):
        read_result_file(made.path)
