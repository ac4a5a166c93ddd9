"""An iteration is written in a thread: in order, one at a time, and no failure is lost."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from small_run import small_config

from counterpoise import loop
from counterpoise.config import StoreConfig
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.run import write_iteration
from counterpoise.run.metrics import IterationResult
from counterpoise.run.observer import RunObserver
from counterpoise.run.state import RunState
from counterpoise.run.write_iteration import IterationWriter
from counterpoise.store.folder import RunFolder
from counterpoise.types import Prompt
from counterpoise.verify.exact import ExactVerifier


class SlowDisk:
    """Stands for `write_iteration`: a write ends when it is told to."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.written: list[int] = []
        self.may_finish = threading.Event()
        self.failing_number = 0

    def __call__(self, folder: Any, iteration: int, record: Any, store: Any) -> None:
        self.started.append(iteration)
        assert self.may_finish.wait(10)
        if iteration == self.failing_number:
            raise PoiseError("the disk is full")
        self.written.append(iteration)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    slow_disk = SlowDisk()
    monkeypatch.setattr(write_iteration, "write_iteration", slow_disk)
    return slow_disk


def hand_over(writer: IterationWriter, number: int) -> None:
    writer.write(cast(IterationResult, number), {})


def open_writer(tmp_path: Path) -> IterationWriter:
    return IterationWriter(RunFolder(tmp_path), StoreConfig(), in_background=True)


def test_training_goes_on_while_an_iteration_is_written(disk: SlowDisk, tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        hand_over(writer, 1)
        assert disk.written == []  # handed over, and the caller was not held up
        disk.may_finish.set()
        writer.wait()
        assert disk.written == [1]
        hand_over(writer, 2)
        hand_over(writer, 3)
    assert disk.written == [1, 2, 3]


def test_at_most_one_iteration_is_in_memory(disk: SlowDisk, tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        hand_over(writer, 1)
        second = threading.Thread(target=hand_over, args=(writer, 2))
        second.start()
        second.join(0.05)
        assert second.is_alive()  # waits for the first write
        assert disk.started == [1]
        disk.may_finish.set()
        second.join()
    assert disk.written == [1, 2]


def test_waiting_that_was_interrupted_can_be_repeated(
    disk: SlowDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(futures: Any) -> None:
        raise KeyboardInterrupt

    with open_writer(tmp_path) as writer:
        hand_over(writer, 1)
        with monkeypatch.context() as patch:
            patch.setattr(write_iteration, "wait_for_futures", interrupt)
            with pytest.raises(KeyboardInterrupt):
                writer.wait()
        threading.Timer(0.05, disk.may_finish.set).start()
        writer.wait()
        assert disk.written == [1]


def test_an_interrupt_while_an_evaluation_waits_for_the_write_saves_a_checkpoint(
    disk: SlowDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("demo", ["loop.checkpoint_every=100", "evaluate.every=7"])
    state = SimpleNamespace(iteration=0, benchmarks=())
    saved: list[list[int]] = []

    def iterate(*arguments: Any) -> dict[str, Any]:
        state.iteration = 7
        hand_over(writer, 7)
        return {}

    def interrupt_once(futures: Any) -> None:
        monkeypatch.setattr(write_iteration, "wait_for_futures", wait)
        disk.may_finish.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "iterate", iterate)
    monkeypatch.setattr(loop, "save_state", lambda *arguments: saved.append(list(disk.written)))
    monkeypatch.setattr(write_iteration, "wait_for_futures", interrupt_once)
    heldout, run = [Prompt("a", "?", "1")], cast(RunState, state)
    with open_writer(tmp_path) as writer, pytest.raises(KeyboardInterrupt):
        loop.run_iterations(run, [], heldout, config, ExactVerifier(), writer, RunObserver())
    assert saved == [[7]]  # after the iteration was written


@pytest.mark.parametrize("notice_by", ["next", "wait", "end"])
def test_a_failed_write_is_raised(disk: SlowDisk, tmp_path: Path, notice_by: str) -> None:
    disk.failing_number = 1
    disk.may_finish.set()

    def train() -> None:
        with open_writer(tmp_path) as writer:
            hand_over(writer, 1)
            if notice_by == "next":
                hand_over(writer, 2)
            elif notice_by == "wait":
                writer.wait()

    with pytest.raises(PoiseError, match="the disk is full"):
        train()
    assert disk.written == []


@pytest.mark.parametrize("failing_number", [0, 1])
def test_a_run_that_is_stopped_writes_its_last_iteration_and_says_why_it_stopped(
    disk: SlowDisk, tmp_path: Path, failing_number: int
) -> None:
    disk.failing_number = failing_number

    def train() -> None:
        with open_writer(tmp_path) as writer:
            hand_over(writer, 1)
            threading.Timer(0.05, disk.may_finish.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert disk.written == ([] if failing_number else [1])


def test_a_run_written_in_the_background_leaves_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(tmp_path, "loop.iterations=3")
    # Seconds are in the logs, so both runs read a clock that advances by one with each look.
    monkeypatch.setattr(time, "perf_counter", itertools.count().__next__)
    loop.train(config, tmp_path / "plain" / "run")
    monkeypatch.setattr(time, "perf_counter", itertools.count().__next__)
    monkeypatch.setattr(
        loop,
        "open_writer",
        lambda folder, policy, config: IterationWriter(folder, config.store, in_background=True),
    )
    loop.train(config, tmp_path / "background" / "run")
    assert file_contents(tmp_path / "background" / "run") == file_contents(
        tmp_path / "plain" / "run"
    )


def file_contents(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*.*")}
