"""The mark of a run that has ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from counterpoise.config import RunConfig, StoreConfig
from counterpoise.errors import PoiseError
from counterpoise.files import folder_lock
from counterpoise.store.finished import is_finished, refuse_finished


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
    refuse_finished(tmp_path, config)
    assert (tmp_path / "checkpoints").exists()
    (tmp_path / "finished.json").write_text(json.dumps({"schema": 1, "iterations": 3}))
    refuse_finished(tmp_path, RunConfig())
    assert (tmp_path / "checkpoints").exists()
    with pytest.raises(PoiseError, match="there is nothing to resume"), folder_lock(tmp_path):
        refuse_finished(tmp_path, config)  # somebody else is at work there
    assert (tmp_path / "checkpoints").exists()
    with pytest.raises(PoiseError, match="there is nothing to resume"):
        refuse_finished(tmp_path, config)
    assert [path.name for path in tmp_path.iterdir()] == ["finished.json"]
