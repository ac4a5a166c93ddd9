"""`poise plan` on logs of other trainers: the import to type, in one line."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterpoise.cli import main
from counterpoise.model.load import EMBEDDED_FOLDER


def poise(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["poise", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


def write_verl(folder: Path) -> Path:
    lines = [
        {"input": "1 + 1 = ?", "output": text, "gts": "2", "score": score, "step": 7}
        for text, score in (("two", 1.0), ("three", 0.0))
    ]
    path = folder / "7.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def write_trl(folder: Path) -> Path:
    path = folder / "completions_00007.parquet"
    columns = {
        "step": [7, 7],
        "prompt": ["1 + 1 = ?"] * 2,
        "completion": ["two", "three"],
        "correct": [1.0, 0.0],
        "advantage": [1.0, -1.0],
    }
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(("title", "write"), [("verl", write_verl), ("TRL", write_trl)])
def test_a_log_of_another_trainer_suggests_the_import(
    title: str,
    write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    log = write(tmp_path)
    assert poise(monkeypatch, "plan", str(log)) == 2
    error = capfd.readouterr().err
    assert error.startswith(f"poise: {log} is a log of {title}: convert it first with poise import")
    assert error.count("\n") == 1
    # What it says can be typed: the import works, and its file is planned.
    command = error.partition("with poise ")[2].partition(", then")[0]
    words = shlex.split(command.replace("MODEL", shlex.quote(str(EMBEDDED_FOLDER))))
    assert poise(monkeypatch, *words) == 0
    step = tmp_path / "out" / "imported" / "rollouts" / "step_00007.jsonl"
    assert poise(monkeypatch, "plan", str(step), "-k", "1") == 0


def test_rollouts_with_a_number_as_their_name_are_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "7.jsonl"
    rows = [{"prompt_id": "a", "reward": reward, "num_tokens": 3} for reward in (0, 1)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert poise(monkeypatch, "plan", str(path), "-k", "1") == 0
    assert "2 rows of 1 groups" in capfd.readouterr().out
    path.write_text('{"prompt_id": "a", "num_tokens": 3}\n')  # a fault of a file of ours
    assert poise(monkeypatch, "plan", str(path), "-k", "1") == 2
