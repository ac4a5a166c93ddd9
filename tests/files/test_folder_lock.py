"""Two commands on one run folder: the second is refused, and what the first wrote is untouched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from counterpoise.config import RunConfig
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.files import check_unlocked, folder_lock
from counterpoise.loop import train
from counterpoise.run import lifecycle
from counterpoise.run.observer import RunObserver

SETS = [
    "loop.iterations=2", "model.device='cpu'", "task.levels=[1]", "task.size=16", "task.heldout=2",
    "sample.prompts=2", "sample.group_size=2", "sample.max_new_tokens=16", "balance.tau=0",
    "balance.target=0", "batch.steps=1", "evaluate.prompts=0", "verify.name='exact'",
]  # fmt: skip


def test_the_second_one_is_refused_and_the_next_is_not(tmp_path: Path) -> None:
    with (
        folder_lock(tmp_path),
        pytest.raises(PoiseError, match="being written by another process: wait"),
        folder_lock(tmp_path),
    ):
        raise AssertionError("never here")
    check_unlocked(tmp_path)
    assert list(tmp_path.iterdir()) == []  # the folder is the lock


def test_a_process_that_died_holds_nothing(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with folder_lock(tmp_path):
            os._exit(9)
    os.waitpid(child, 0)
    check_unlocked(tmp_path)


def test_a_run_that_goes_on_is_not_resumed(tmp_path: Path) -> None:
    out, config, refused = tmp_path / "run", load_config("demo", SETS), []

    class Impatient(RunObserver):
        def on_iteration(self, record: dict[str, Any]) -> None:
            before = (out / "metrics.jsonl").read_bytes()
            with pytest.raises(PoiseError, match="being written by another process"):
                train(config, out, resume=True)
            refused.append(before == (out / "metrics.jsonl").read_bytes())

    train(config, out, observer=Impatient())
    assert refused == [True, True]
    train(config, out, resume=True)  # ended: nobody holds it


def test_one_that_looked_before_the_other_held_the_folder_cuts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were started at once and saw nobody; the second was slower to load its model. It is
    refused while the first trains and while it writes its last files."""
    out, config, refused = tmp_path / "run", load_config("demo", SETS), []
    monkeypatch.setattr(lifecycle, "check_unlocked", lambda path: None)

    def second() -> None:
        before = (out / "metrics.jsonl").read_bytes()
        with pytest.raises(PoiseError, match="being written by another process"):
            train(config, out, resume=True)
        refused.append(before == (out / "metrics.jsonl").read_bytes())

    class Impatient(RunObserver):
        def on_iteration(self, record: dict[str, Any]) -> None:
            second()

        def on_finish(self, run_folder: Path) -> None:
            second()

    train(config, out, observer=Impatient())
    assert refused == [True, True, True]


def test_a_run_that_ended_while_another_loaded_keeps_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kept no checkpoint: to resume it would be to start it again."""
    out, config = tmp_path / "run", load_config("demo", [*SETS, "store.model=false"])
    train(config, out)
    before, real, calls = (out / "metrics.jsonl").read_bytes(), lifecycle.refuse_finished, []

    def too_early(path: Path, asked: RunConfig) -> None:
        calls.append(path)
        if len(calls) > 1:
            real(path, asked)

    monkeypatch.setattr(lifecycle, "refuse_finished", too_early)
    with pytest.raises(PoiseError, match="there is nothing to resume"):
        train(config, out, resume=True)
    assert (out / "metrics.jsonl").read_bytes() == before
