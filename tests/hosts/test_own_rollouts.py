"""Our own run folders, and JSON lines of any trainer, through `poise import`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hosts.importing.foreign import read_lines, trl_file, write_lines
from hosts.importing.foreign_dumps import write_rollout_dump, write_slime_dump
from hosts.importing.foreign_tinker import tinker_run
from report.synthetic import Page

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.lab.choose_page import write_report
from counterpoise.store.folder import RunFolder


def test_plans_and_tokens_of_a_folder_are_taken_over(tmp_path: Path) -> None:
    write_slime_dump(tmp_path / "dump", 3)
    write_rollout_dump(tmp_path / "dump", 3)
    import_run(tmp_path / "dump", tmp_path / "first")
    result = import_run(tmp_path / "first", tmp_path / "second")
    assert (result.source, result.steps, result.rollouts) == ("slime", 1, 8)
    first, second = RunFolder(tmp_path / "first"), RunFolder(tmp_path / "second")
    assert first.read("plans") == second.read("plans")
    assert first.read("metrics") == second.read("metrics")
    assert first.read_rollouts(3) == second.read_rollouts(3)
    tables = [pq.read_table(folder.step_files("tokens")[3]) for folder in (first, second)]
    for name in tables[0].column_names:
        assert np.array_equal(*(table[name].to_numpy() for table in tables), equal_nan=True)
    sections = Page(write_report(tmp_path / "second")).sections
    assert sections == ["learning", "mosaic", "tokens", "monitor", "plans", "rollouts", "words"]


def test_json_lines_of_any_trainer(tmp_path: Path) -> None:
    records = [
        {"prompt_id": 7, "reward": i % 2, "response_tokens": [5, 6], "further": {"form": 0.5}}
        for i in range(4)
    ]
    file = write_lines(tmp_path / "mine_12.jsonl", records)
    result = import_run(file, tmp_path / "out")
    assert (result.rollouts, result.groups) == (4, 1)
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00012.jsonl")
    assert lines[1]["group"] == "12:7"
    assert lines[1]["further"] == {"form": 0.5}
    for i, record in enumerate(records):  # two groups of a prompt, by number
        record |= {"group": i // 2, "answer": None}
    file = write_lines(tmp_path / "mine-13.jsonl", records)
    assert import_run(file, tmp_path / "numbered").groups == 2
    lines = read_lines(tmp_path / "numbered" / "rollouts" / "step_00013.jsonl")
    assert [line["group"] for line in lines] == ["13:0", "13:0", "13:1", "13:1"]
    assert not any(line.get("answer") for line in lines)  # null is no answer
    write_lines(file, [records[0], {"prompt_id": 7, "reward": 1.0}])
    with pytest.raises(PoiseError, match="line 2: no 'response_tokens'"):
        import_run(file, tmp_path / "other")


def test_an_import_of_an_import_says_where_it_comes_from(tmp_path: Path) -> None:
    trl_file(tmp_path / "trl")
    first, second = tmp_path / "first", tmp_path / "second"
    import_run(tmp_path / "trl", first, tokenizer="embedded")
    result = import_run(first, second)
    assert result.source == "TRL"
    headers = [json.loads((folder / "imported.json").read_text()) for folder in (first, second)]
    again = [*headers[0]["notes"], f"imported again from {first.name}"]
    assert headers[1] == headers[0] | {"notes": again}
    assert headers[1]["encoded_tokens"]
    names = ("vocabulary.json", "rollouts/step_00001.jsonl", "metrics.jsonl")
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)
    (first / "imported.json").write_text("[]")
    with pytest.raises(PoiseError, match=r"imported\.json is damaged"):
        import_run(first, tmp_path / "third")


def test_rollouts_of_which_only_the_length_is_known(tmp_path: Path) -> None:
    tinker_run(tmp_path / "run")
    first = import_run(tmp_path / "run", tmp_path / "first")
    second = import_run(tmp_path / "first", tmp_path / "second")
    assert (second.source, second.tokens) == ("tinker-cookbook", first.tokens)
    file = write_lines(tmp_path / "mine.jsonl", [{"prompt_id": 7, "reward": 1.0, "num_tokens": 9}])
    assert import_run(file, tmp_path / "third").tokens == 9


@pytest.mark.parametrize(
    ("field_name", "value", "expected"),
    [
        ("group", 1.5, "a text or a whole number"),
        ("advantage", "high", "a number"),
        ("prompt", ["a"], "a text"),
        ("response", 3, "a text"),
        ("prompt_tokens", "ab", "a list of token ids"),
        ("sampled_logprobs", [None], "a list of numbers"),
        ("finished", "yes", "true or false"),
        ("turns", 1, "a list"),
    ],
)
def test_a_field_of_another_type_is_one_line(
    tmp_path: Path, field_name: str, value: object, expected: str
) -> None:
    record = {"prompt_id": "p", "reward": 1, "response_tokens": [5], field_name: value}
    file = write_lines(tmp_path / "mine.jsonl", [record])
    with pytest.raises(PoiseError, match=f"line 1: '{field_name}' is not {expected}: fix or"):
        import_run(file, tmp_path / "out")


def test_turns_are_copied_and_checked(tmp_path: Path) -> None:
    turns = [
        {"start": 0, "told": [], "action": [0, 1], "feedback": "12 is too many."},
        {"start": 1, "told": [8, 9], "action": [1, 2], "feedback": ""},
    ]
    record = {"prompt_id": "p", "reward": 1, "response_tokens": [5, 6], "turns": turns}
    import_run(write_lines(tmp_path / "mine.jsonl", [record]), tmp_path / "out")
    assert read_lines(tmp_path / "out" / "rollouts" / "step_00001.jsonl")[0]["turns"] == turns
    faulty = write_lines(tmp_path / "faulty.jsonl", [record | {"turns": [{"start": 0}]}])
    with pytest.raises(PoiseError, match=r"line 1: 'turns' cannot be read \(a turn needs start"):
        import_run(faulty, tmp_path / "refused")
