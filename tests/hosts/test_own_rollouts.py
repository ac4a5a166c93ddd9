"""Our own run folders, and JSON lines of any trainer, through `poise import`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hosts.importing.foreign import read_lines, write_lines
from hosts.importing.foreign_dumps import write_rollout_dump, write_slime_dump
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
    assert (result.source, result.steps, result.rollouts) == ("Counterpoise", 1, 8)
    first, second = RunFolder(tmp_path / "first"), RunFolder(tmp_path / "second")
    assert first.read("plans") == second.read("plans")
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
    write_lines(file, [{"prompt_id": 7, "reward": 1.0}])
    with pytest.raises(PoiseError, match="line 1: no 'response_tokens'"):
        import_run(file, tmp_path / "other")


@pytest.mark.parametrize(
    ("field_name", "value", "expected"),
    [
        ("group", 1.5, "a text or a whole number"),
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
