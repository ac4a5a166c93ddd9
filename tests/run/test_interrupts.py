"""SIGTERM stops `poise train` as Ctrl-C does, also where Ctrl-C is not heard: the iteration is
finished and a checkpoint saved. The second one stops at once."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import forked
import pytest

from counterpoise import cli, loop
from counterpoise.config.load import load_config
from counterpoise.run import interrupts
from counterpoise.run.interrupts import postpone_interrupts, sigterm_as_interrupt
from counterpoise.run.observer import RunObserver
from counterpoise.run.state import RunState
from counterpoise.run.write_iteration import IterationWriter
from counterpoise.store import checkpoint
from counterpoise.store.folder import RunFolder
from counterpoise.verify.exact import ExactVerifier

SMALL = (
    "loop.iterations=200", "loop.checkpoint_every=1000", "sample.prompts=4",
    "sample.max_new_tokens=8", "batch.steps=2", "balance.tau=0", "task.size=16",
    "evaluate.prompts=0", "monitor.every=0", "loop.threads=1",
)  # fmt: skip


def test_sigterm_is_an_interrupt_inside_and_what_it_was_outside() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_waits_for_the_end_of_the_block(
    number: int, capfd: pytest.CaptureFixture[str]
) -> None:
    done = []

    def work() -> None:
        with postpone_interrupts("wait") as interrupts:
            assert not interrupts.is_waiting()
            signal.raise_signal(number)
            signal.raise_signal(number)  # within a second: `timeout` sends it twice
            assert interrupts.is_waiting()
            done.append(True)

    with sigterm_as_interrupt():
        before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
        with pytest.raises(KeyboardInterrupt):
            work()
        assert done
        assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before
    assert capfd.readouterr().err == "\npoise: wait; interrupt again to stop at once instead\n"
    with postpone_interrupts("never said"):
        pass


def test_the_second_signal_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "REPEATED_SIGNAL_SECONDS", 0.0)

    def work() -> None:
        with postpone_interrupts("wait"):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("never here")

    with pytest.raises(KeyboardInterrupt):
        work()


def test_interrupts_are_delivered_inside_and_one_that_has_waited_first() -> None:
    done = []

    def work(waiting: bool) -> None:
        with postpone_interrupts("wait") as interrupts:
            if waiting:
                signal.raise_signal(signal.SIGINT)
            try:
                with interrupts.delivered():
                    done.append(waiting)
                    signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                signal.raise_signal(signal.SIGINT)  # postponed again: what follows is still done
                assert interrupts.is_waiting() == (not waiting)  # repeated, it counts once
                raise

    for waiting in (False, True):
        with pytest.raises(KeyboardInterrupt):
            work(waiting)
    assert done == [False]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("moment", ["in iteration 1", "after iteration 1", "in iteration 2"])
def test_no_iteration_is_lost_whenever_a_signal_comes(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints are never due here: the one that an interrupt saves is the only one."""
    config = load_config("demo", ["loop.checkpoint_every=1000", "evaluate.every=0"])
    state, saved = SimpleNamespace(iteration=0), []

    def iterate(*arguments: object) -> dict[str, object]:
        assert state.iteration < 2
        state.iteration += 1
        if moment == f"in iteration {state.iteration}":
            signal.raise_signal(signal.SIGINT)
        return {}

    def evaluate(*arguments: object) -> None:
        if moment == f"after iteration {state.iteration}":
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(loop, "iterate", iterate)
    monkeypatch.setattr(loop, "evaluate", evaluate)
    monkeypatch.setattr(loop, "evaluation_due", lambda *arguments: False)
    monkeypatch.setattr(loop, "save_state", lambda *arguments: saved.append(state.iteration))
    writer = cast(IterationWriter, SimpleNamespace(wait=lambda: None, folder=None))
    with pytest.raises(KeyboardInterrupt):
        loop.run_iterations(
            cast(RunState, state), [], [], config, ExactVerifier(), writer, RunObserver()
        )
    assert saved == [int(moment[-1])]


def test_the_second_signal_does_not_wait_for_what_the_first_began(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Once the first one has been delivered, what follows it, such as saving, is interrupted."""
    monkeypatch.setattr(interrupts, "REPEATED_SIGNAL_SECONDS", 0.0)

    def work() -> None:
        with postpone_interrupts("wait") as postponed:
            signal.raise_signal(signal.SIGINT)
            try:
                with postponed.delivered():
                    raise AssertionError("never here")
            except KeyboardInterrupt:
                signal.raise_signal(signal.SIGINT)
                raise AssertionError("never here") from None

    with pytest.raises(KeyboardInterrupt):
        work()
    assert capfd.readouterr().err.count("poise: wait") == 1


def test_a_fault_in_the_block_comes_first() -> None:
    def work() -> None:
        with postpone_interrupts("wait"):
            signal.raise_signal(signal.SIGINT)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()


def test_what_is_ignored_stays_ignored_and_other_threads_are_left_alone() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with postpone_interrupts("never said") as interrupts:
            signal.raise_signal(signal.SIGINT)
            assert not interrupts.is_waiting()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)

    found = []

    def elsewhere() -> None:
        with postpone_interrupts("never said") as interrupts:
            found.append(interrupts.is_waiting())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [False]


@pytest.mark.slow
def test_a_run_that_is_deaf_to_ctrl_c_hears_sigterm(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "counterpoise.cli", "train", "--out", str(tmp_path / "run")]
    run = forked.Popen(
        [*words, "demo", *(f"--set={option}" for option in SMALL)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    metrics = tmp_path / "run" / "metrics.jsonl"

    def wait_for_iterations(number: int) -> None:
        while not metrics.exists() or metrics.read_bytes().count(b"\n") < number:
            assert run.poll() is None
            time.sleep(0.02)

    wait_for_iterations(2)
    run.send_signal(signal.SIGINT)
    wait_for_iterations(metrics.read_bytes().count(b"\n") + 2)  # deaf
    run.send_signal(signal.SIGTERM)
    said = run.communicate(timeout=600)[1]
    assert run.returncode == 130
    *earlier, last = said.split("poise: ")[1:]
    assert len(earlier) <= 1  # none if the signal came between two iterations
    assert all(text.startswith("finishing the iteration") for text in earlier)
    again = f"{sys.executable} -m counterpoise.cli train --resume --out {tmp_path / 'run'}"
    assert last == f"stopped; resume it from its last checkpoint with: {again}\n"

    folder = RunFolder.open(tmp_path / "run")
    behind = len(folder.read("metrics"))
    assert 2 <= behind < 200
    kept = checkpoint.list_checkpoints(folder.checkpoints)
    assert [path.name for path in kept] == [checkpoint.folder_name(behind)]  # nothing is lost
    more = [*shlex.split(again), f"--set=loop.iterations={behind + 1}"]
    resumed = forked.run(more, check=True)
    assert f"resuming after iteration {behind}" in resumed.stdout
    lines = RunFolder.open(tmp_path / "run").read("metrics")
    assert [line["iteration"] for line in lines] == list(range(1, behind + 2))


def test_an_interrupt_before_the_command_begins_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """typer reads every command first, which takes a while."""

    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    monkeypatch.setattr(sys, "argv", ["poise", "train"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "poise: stopped before anything was done\n"
