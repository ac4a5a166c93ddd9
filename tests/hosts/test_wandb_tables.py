"""Tables of W&B: {"columns", "data"} as wandb 0.31.0 writes them below files/media/table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hosts.importing.foreign import advantages, read_lines

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.write_folder import import_run

TRL_COLUMNS = ["step", "prompt", "completion", "correct", "form", "advantage"]


def write_table(folder: Path, name: str, columns: list[str], rows: list[list[Any]]) -> Path:
    file = folder / "files" / "media" / "table" / f"{name}.table.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"columns": columns, "data": rows}))
    return file


def trl_rows(step: int, responses: str = "abcd") -> list[list[Any]]:
    """One group of four; the second column of rewards does not apply to the last row."""
    correct, form = [1.0, 0.0, 0.0, 1.0], [0.0, 0.5, 0.0, "NaN"]
    A = advantages([1.0, 0.5, 0.0, 1.0], 4)
    prompt = [{"role": "user", "content": "How many?"}]
    return [
        [step, prompt, text, r, f, a]
        for text, r, f, a in zip(responses, correct, form, A, strict=True)
    ]


def test_tables_of_trl(tmp_path: Path) -> None:
    run = tmp_path / "wandb" / "run-1"
    write_table(run, "completions_9_0a1b", TRL_COLUMNS, trl_rows(3))
    write_table(run, "completions_10_0c1d", TRL_COLUMNS, trl_rows(4))  # the same generation
    write_table(run, "completions_11_0e1f", TRL_COLUMNS, trl_rows(5, "wxyz"))
    write_table(run, "other_4_99aa", ["loss"], [[1.0]])
    (tmp_path / "wandb" / "latest-run").symlink_to("run-1")
    result = import_run(tmp_path, tmp_path / "out", tokenizer="embedded")
    assert (result.source, result.steps, result.rollouts, result.groups) == ("W&B tables", 2, 8, 2)
    assert "reward = correct + form (inferred; --reward names other columns)" in result.notes
    assert "left out: 1 table with other columns" in result.notes
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00003.jsonl")
    assert [line["reward"] for line in lines] == [1.0, 0.5, 0.0, 1.0]
    assert [line["response"] for line in lines] == ["a", "b", "c", "d"]
    assert lines[0]["prompt"] == "How many?"


def test_a_completion_may_read_like_a_number_that_is_none(tmp_path: Path) -> None:
    """W&B writes NaN and infinities as texts; a model may write the same words."""
    rows = trl_rows(3)
    for row, text in zip(rows, ("Infinity", "NaN", "-Infinity", "d"), strict=True):
        row[2] = text
    write_table(tmp_path / "run-1", "completions_9_0a1b", TRL_COLUMNS, rows)
    import_run(tmp_path / "run-1", tmp_path / "out", tokenizer="embedded")
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00003.jsonl")
    assert [line["response"] for line in lines] == ["Infinity", "NaN", "-Infinity", "d"]
    assert [line["reward"] for line in lines] == [1.0, 0.5, 0.0, 1.0]


def test_tables_of_other_tools(tmp_path: Path) -> None:
    """A table that grows: the last one has all rows. Without a step, the file's number counts."""
    columns = ["global_step", "question", "response", "score", "ground_truth"]
    rows = [[step, "How many?", f"{step}{i}", float(i), "3"] for step in (1, 2) for i in (0, 1)]
    write_table(tmp_path / "run", "samples_1_aa", columns, rows[:1])
    write_table(tmp_path / "run", "samples_2_bb", columns, rows)
    result = import_run(tmp_path / "run", tmp_path / "out", tokenizer="embedded")
    assert (result.steps, result.rollouts, result.groups) == (2, 4, 2)
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00001.jsonl")
    assert [(line["reward"], line["answer"]) for line in lines] == [(0.0, "3"), (1.0, "3")]
    file = write_table(tmp_path / "b", "s_7_cc", ["prompt", "output", "reward"], [["?", "x", 1.0]])
    import_run(file, tmp_path / "named", tokenizer="embedded")
    assert (tmp_path / "named" / "rollouts" / "step_00007.jsonl").is_file()


def test_tables_of_several_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rollouts of an evaluation are not those of training; a mount point may be called media."""
    columns, run = ["prompt", "output", "reward"], tmp_path / "media" / "disk" / "run-1"
    write_table(run, "train_5_aa", columns, [["?", "train", 1.0], ["?", "train", 0.0]])
    write_table(run, "val_5_bb", columns, [["?", "validation", 1.0]])
    monkeypatch.chdir(run / "files")
    result = import_run(Path(), tmp_path / "out", tokenizer="embedded")
    assert (result.steps, result.rollouts) == (1, 2)
    assert "left out: tables of evaluations (val)" in result.notes
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00005.jsonl")
    assert {line["response"] for line in lines} == {"train"}
    write_table(run, "other/samples_5_cc", columns, [["?", "other", 1.0]])
    with pytest.raises(PoiseError, match=r"rollouts under 2 keys \(other/samples, train\): copy"):
        import_run(run, tmp_path / "several", tokenizer="embedded")


def test_faults(tmp_path: Path) -> None:
    file = write_table(
        tmp_path / "run-1", "val_1_aa", ["step", "input_1", "output_1"], [[1, "", ""]]
    )
    with pytest.raises(
        PoiseError, match=r"no table of rollouts \(columns: step, input_1, output_1"
    ):
        import_run(file, tmp_path / "out", tokenizer="embedded")
    write_table(tmp_path / "run-2", "completions_1_aa", TRL_COLUMNS, trl_rows(1))
    with pytest.raises(PoiseError, match=r"tables of 2 runs \(run-1, run-2\): name one of them"):
        import_run(tmp_path, tmp_path / "out", tokenizer="embedded")
    file.write_text('{"columns": ["a"]}')
    with pytest.raises(PoiseError, match="is no table of W&B"):
        import_run(file, tmp_path / "out", tokenizer="embedded")
