"""Two commands on one run folder: the second is refused, and what the first wrote is untouched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from counterpoise.errors import PoiseError
from counterpoise.loop import train
from counterpoise.runfile import load_config
from counterpoise.store.alone import alone, check_alone
from counterpoise.watch import Watch

SETS = [
    "loop.iterations=2", "model.device='cpu'", "task.levels=[1]", "task.size=16", "task.heldout=2",
    "sample.prompts=2", "sample.group_size=2", "sample.max_new_tokens=16", "balance.tau=0",
    "balance.target=0", "batch.steps=1", "evaluate.prompts=0", "verify.name='exact'",
]  # fmt: skip


def test_the_second_one_is_refused_and_the_next_is_not(tmp_path: Path) -> None:
    with (
        alone(tmp_path),
        pytest.raises(PoiseError, match="being written by another process: wait"),
        alone(tmp_path),
    ):
        raise AssertionError("never here")
    check_alone(tmp_path)
    assert list(tmp_path.iterdir()) == []  # the folder is the lock


def test_a_process_that_died_holds_nothing(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with alone(tmp_path):
            os._exit(9)
    os.waitpid(child, 0)
    check_alone(tmp_path)


def test_a_run_that_goes_on_is_not_resumed(tmp_path: Path) -> None:
    out, config, refused = tmp_path / "run", load_config("demo", SETS), []

    class Impatient(Watch):
        def iterated(self, record: dict[str, Any]) -> None:
            before = (out / "metrics.jsonl").read_bytes()
            with pytest.raises(PoiseError, match="being written by another process"):
                train(config, out, resume=True)
            refused.append(before == (out / "metrics.jsonl").read_bytes())

    train(config, out, watch=Impatient())
    assert refused == [True, True]
    train(config, out, resume=True)  # ended: nobody holds it
