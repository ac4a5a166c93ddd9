"""The mark of a run that has ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from counterpoise.config import RunConfig, StoreConfig
from counterpoise.errors import PoiseError
from counterpoise.store.finished import check_resumable, is_finished


def test_a_run_has_ended_at_its_iterations(tmp_path: Path) -> None:
    assert not is_finished(tmp_path, 3)
    (tmp_path / "finished.json").write_text(json.dumps({"schema": 1, "iterations": 3}))
    assert is_finished(tmp_path, 3)
    assert not is_finished(tmp_path, 4)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b'{"schema": 1, "iter', "Unterminated string"),
        (b"{}", "'iterations'"),
        (b"[3]", "list indices"),
        (b"\xff\xfe", "'utf-8' codec"),
    ],
)
def test_a_damaged_mark_is_one_line(tmp_path: Path, text: bytes, said: str) -> None:
    mark = tmp_path / "finished.json"
    mark.write_bytes(text)
    with pytest.raises(PoiseError) as fault:
        is_finished(tmp_path, 3)
    assert str(fault.value).startswith(f"{mark} is damaged ({said}")
    assert str(fault.value).endswith(": remove it to treat the run as unfinished")
    assert "\n" not in str(fault.value)


def test_checkpoints_that_a_killed_run_could_not_remove_go_later(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "iteration_00003").mkdir(parents=True)
    config = RunConfig(store=StoreConfig(model=False))
    check_resumable(tmp_path, config)
    assert (tmp_path / "checkpoints").exists()
    (tmp_path / "finished.json").write_text(json.dumps({"schema": 1, "iterations": 3}))
    check_resumable(tmp_path, RunConfig())
    assert (tmp_path / "checkpoints").exists()
    with pytest.raises(PoiseError, match="there is nothing to resume"):
        check_resumable(tmp_path, config)
    assert [path.name for path in tmp_path.iterdir()] == ["finished.json"]
