"""Runs of a study: trained once, taken up, refused when they are not the ones asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from small_run import SETS, small_config

from counterpoise import cli
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.files import folder_lock
from counterpoise.lab.experiments import processes
from counterpoise.lab.experiments.fork_server import ForkedRun, ForkServer
from counterpoise.lab.experiments.processes import (
    FIXED_OPTIONS,
    Fleet,
    FleetProgress,
    number_of_jobs,
    train_runs,
)
from counterpoise.lab.experiments.terminal import _Display
from counterpoise.store.folder import Engine, RunFolder

SMALL = (
    "loop.iterations=2", "sample.prompts=4", "batch.steps=2", "balance.tau=0", "task.size=16",
    "evaluate.prompts=0", "store.rollouts=false", "store.tokens=false", "monitor.every=0",
    "store.report=false", "sample.max_new_tokens=16", "verify.workers=1",
)  # fmt: skip


# The third iteration's rewards are not there as long as the file `hold` is.
HELD_REWARD = """
import time, zlib
from pathlib import Path

calls = 0

def score(completion, answer):
    global calls
    calls += 1
    while calls > 18 and Path(__file__).with_name("hold").exists():
        time.sleep(0.01)
    return float(zlib.crc32(completion.encode()) % 2)
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options of a run of a random model that is trained in a fraction of a second."""
    folder = tmp_path_factory.mktemp("tiny")
    small_config(folder)  # writes the model and a reward function
    return (
        *SETS, "loop.iterations=2", "evaluate.prompts=0", "monitor.every=0", "store.report=false",
        "store.rollouts=false", "store.tokens=false", "balance.tau=0",
        "verify.reward_timeout_seconds=0",
        f"model.name={folder / 'model'}", f"verify.name={folder}/mine.py:score",
    )  # fmt: skip


def silent(doing: str, share: float) -> None:
    pass


WITHOUT_MEMORY = ["without memory"]  # instead of a run's arguments: it ends as memory ends one
real_main, real_start = cli.main, ForkServer.start


def run_out_of_memory() -> None:
    """Stands for the command line in runs, which are forks of this process."""
    if sys.argv[1:] == WITHOUT_MEMORY:
        print("poise: out of memory: a smaller model")
        raise SystemExit(2)
    real_main()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_runs")
def test_runs_are_trained_once(tmp_path: Path, tiny: tuple[str, ...]) -> None:
    told: list[tuple[str, float]] = []
    runs = {"a": tiny, "b": (*tiny, "loop.seed=1")}
    first = train_runs(runs, tmp_path, lambda *what: told.append(what))
    assert list(first) == ["a", "b"]
    assert told[-1] == ("2 of 2 runs", 1.0)
    assert [share for _, share in told] == sorted(share for _, share in told)
    metrics = {name: run.read("metrics") for name, run in first.items()}
    assert [len(m) for m in metrics.values()] == [2, 2]
    assert metrics["a"][0]["old_logprob"] != metrics["b"][0]["old_logprob"]

    written = (tmp_path / "a" / "metrics.jsonl").stat().st_mtime_ns
    again = train_runs(runs, tmp_path, silent)
    assert (tmp_path / "a" / "metrics.jsonl").stat().st_mtime_ns == written
    assert again["a"].read("metrics") == metrics["a"]

    with pytest.raises(PoiseError, match=r"made with loop\.seed=0, not 5: remove it"):
        train_runs({"a": (*tiny, "loop.seed=5")}, tmp_path, silent)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_runs")
def test_a_run_that_stopped_goes_on(tmp_path: Path, tiny: tuple[str, ...]) -> None:
    """Only config.toml was written before it was killed."""
    RunFolder.create(tmp_path / "a", load_config("demo", [*FIXED_OPTIONS, *tiny]))
    done = train_runs({"a": tiny}, tmp_path, silent)
    assert len(done["a"].read("metrics")) == 2


def test_a_run_from_other_weights_is_not_continued(tmp_path: Path, tiny: tuple[str, ...]) -> None:
    RunFolder.create(tmp_path / "a", load_config("demo", [*FIXED_OPTIONS, *tiny]))
    (tmp_path / "a.start").write_text("first\n")
    assert Fleet({"a": tiny}, tmp_path, start_digest="first").stored_start("a") == "first"
    with pytest.raises(PoiseError, match="a was started from other weights than the model has now"):
        Fleet({"a": tiny}, tmp_path, start_digest="second")
    # Nor are its numbers taken for those of the new weights, where it has finished.
    (tmp_path / "a" / "finished.json").write_text('{"schema": 1, "iterations": 2}')
    assert Fleet({"a": tiny}, tmp_path, start_digest="second").finished("a")
    with pytest.raises(PoiseError, match="a was started from other weights than the model has now"):
        train_runs({"a": tiny}, tmp_path, silent, "second")
    assert list(train_runs({"a": tiny}, tmp_path, silent, "first")) == ["a"]


@pytest.mark.slow
@pytest.mark.usefixtures("forked_runs")
@pytest.mark.parametrize("option", ["batch.composer={}:f", "verify.also=['overlong', '{}:f=0.5']"])
def test_an_edit_does_not_reach_runs_that_are_yet_to_start(option: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def f(responses, *others):\n    return []\n")
    fleet = Fleet({"a": (*SMALL, option.format(path))}, tmp_path / "runs")
    path.write_text("def f(responses, *others):\n    return [[]]\n")
    fleet.train(jobs=1)
    assert fleet.failures["a"].startswith(f"{path} has changed since the run began")


@pytest.mark.slow
def test_a_fault_of_a_run_is_told(tmp_path: Path) -> None:
    missing = f"model.name={tmp_path / 'nowhere'}"
    with pytest.raises(PoiseError, match=r"the run in .*/a failed: .*nowhere"):
        train_runs({"a": (*SMALL, missing)}, tmp_path / "runs", silent)


def test_options_are_checked_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(PoiseError, match="composer"):
        train_runs({"a": SMALL, "b": ("batch.composer=grupped",)}, tmp_path / "runs", silent)
    assert not (tmp_path / "runs").exists()


def test_a_run_whose_options_are_lost_is_refused(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "a", load_config("demo", [*FIXED_OPTIONS, *SMALL]))
    Fleet({"a": SMALL}, tmp_path)
    (folder.path / "config.toml").write_text("")
    with pytest.raises(PoiseError, match=r"a/config\.toml is empty: remove .*/a to train it again"):
        Fleet({"a": SMALL}, tmp_path)


def test_number_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POISE_JOBS", raising=False)
    assert number_of_jobs() >= 1
    monkeypatch.setenv("POISE_JOBS", "24")
    assert number_of_jobs() == 24
    for wrong in ("0", "many", "-2"):
        monkeypatch.setenv("POISE_JOBS", wrong)
        with pytest.raises(PoiseError, match="POISE_JOBS"):
            number_of_jobs()


@pytest.fixture(params=["heard", "ignored"])
def ctrl_c(request: pytest.FixtureRequest) -> Iterator[str]:
    """As at a terminal, and as in the background of a script; runs inherit it."""
    before = signal.getsignal(signal.SIGINT)
    ignored = request.param == "ignored"
    signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    yield request.param
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_runs")
def test_an_interrupted_run_goes_on_from_its_checkpoint(
    tmp_path: Path, tiny: tuple[str, ...], ctrl_c: str
) -> None:
    # It is in its third iteration when it is told to stop: the rewards are held back until then.
    reward, hold = tmp_path / "reward.py", tmp_path / "hold"
    reward.write_text(HELD_REWARD)
    hold.touch()
    options = (
        *tiny, "loop.iterations=6", "loop.checkpoint_every=1", "store.model=false",
        f"verify.name={reward}:score",
    )  # fmt: skip

    def stop(standing: FleetProgress) -> None:
        if standing.running.get("a", 0) >= 2:
            hold.unlink()
            raise KeyboardInterrupt

    first = Fleet({"a": options}, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        first.train(1, stop)
    assert (tmp_path / "a.log").read_text().splitlines()[-1].startswith("poise: stopped")
    assert not first.finished("a")
    assert not first.failures
    behind = RunFolder.open(tmp_path / "a").read("metrics")
    assert 2 <= len(behind) < 6

    told: list[FleetProgress] = []
    Fleet({"a": options}, tmp_path).train(1, told.append)
    folder = RunFolder.open(tmp_path / "a")
    assert [line["iteration"] for line in folder.read("metrics")] == list(range(1, 7))
    assert min(s.running["a"] for s in told if "a" in s.running) >= len(behind) - 1  # not from 0
    assert told[-1].finished == 1
    assert not (tmp_path / "a" / "checkpoints").exists()
    assert not (tmp_path / "a" / "model").exists()
    assert not (tmp_path / "a.log").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_runs")
def test_a_run_without_memory_waits_for_a_neighbour(
    tmp_path: Path, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run ends as memory ends one; later it has the machine, and a GPU's memory, to itself."""
    starts, shares = [], []

    def start_first_without_memory(
        server: ForkServer, arguments: list[str], environment: dict[str, str], log: Path
    ) -> ForkedRun:
        starts.append(Path(arguments[2]).name)
        shares.append(environment["POISE_MEMORY_SHARE"])
        if starts.count("b") == 1 and starts[-1] == "b":
            arguments = WITHOUT_MEMORY
        return real_start(server, arguments, environment, log)

    monkeypatch.setattr(ForkServer, "start", start_first_without_memory)
    monkeypatch.setattr(cli, "main", run_out_of_memory)
    monkeypatch.setenv("POISE_MEMORY_SHARE", "0.8")  # what the experiment may take
    told: list[FleetProgress] = []
    runs = {name: (*tiny, f"loop.seed={seed}") for seed, name in enumerate("abc")}
    fleet = Fleet(runs, tmp_path / "runs")
    fleet.train(2, told.append)
    assert not fleet.failures
    assert all(fleet.finished(name) for name in runs)
    assert starts.count("b") == 2
    assert told[-1].postponed == 1
    assert shares == ["0.4000", "0.4000", "0.8000", "0.8000"]
    after = [s for s in told if s.postponed]
    assert max(len(s.running) for s in after) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("forked_runs")
def test_runs_that_had_a_share_of_the_memory_are_tried_again_with_all_of_it(
    tmp_path: Path, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the last one, whose neighbours have all ended when it runs out."""
    shares: list[str] = []

    def start_without_memory_in_a_share(
        server: ForkServer, arguments: list[str], environment: dict[str, str], log: Path
    ) -> ForkedRun:
        shares.append(environment["POISE_MEMORY_SHARE"])
        if shares[-1] != "1.0000":
            arguments = WITHOUT_MEMORY
        return real_start(server, arguments, environment, log)

    monkeypatch.setattr(ForkServer, "start", start_without_memory_in_a_share)
    monkeypatch.setattr(cli, "main", run_out_of_memory)
    monkeypatch.delenv("POISE_MEMORY_SHARE", raising=False)
    runs = {name: (*tiny, f"loop.seed={seed}") for seed, name in enumerate("abc")}
    fleet = Fleet(runs, tmp_path / "runs")
    fleet.train(3)
    assert not fleet.failures
    assert all(fleet.finished(name) for name in runs)
    assert shares[:3] == 3 * ["0.3333"]
    assert shares[-3:] == 3 * ["1.0000"]
    assert set(shares[3:-3]) == {"0.5000"}  # one, or two that fail at about the same moment


class FakeRun:
    """A run that needs `need` of the memory, and ends, with less or not, at its third check."""

    checks = 0

    def __init__(self, share: float, need: float, log: Path, finished: set[str]) -> None:
        self.has_enough, self.log, self.finished = share >= need, log, finished

    def poll(self) -> int | None:
        self.checks += 1
        if self.checks < 3:
            return None
        if self.has_enough:
            self.finished.add(self.log.stem)
            return 0
        self.log.write_text("poise: out of memory: a smaller model\n")
        return 2


@pytest.mark.parametrize(
    ("jobs", "need", "runs_at_a_time", "postponed"),
    [(4, 0.2, 4, 0), (4, 0.3, 3, 4), (4, 0.4, 2, 7), (4, 0.9, 1, 9), (64, 0.9, 1, 244)],
)
def test_as_many_runs_as_fit_share_the_memory(
    tmp_path: Path, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch,
    jobs: int, need: float, runs_at_a_time: int, postponed: int,
) -> None:  # fmt: skip
    """All that run at a time fail at the same moment: that is one share which is too small."""
    finished: set[str] = set()
    held: list[float] = []  # shares of the runs that train at a time, summed

    class FakeServer(nullcontext[None]):
        def __enter__(self) -> FakeServer:  # type: ignore[override]
            return self

        def start(self, _: object, environment: dict[str, str], log: Path) -> FakeRun:
            share = float(environment["POISE_MEMORY_SHARE"])
            held.append(share + sum(fleet._shares[name] for name in fleet._processes))
            return FakeRun(share, need, log, finished)

    monkeypatch.setattr(processes, "ForkServer", lambda *_, **__: FakeServer())
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(Fleet, "finished", lambda _, name: name in finished)
    monkeypatch.delenv("POISE_MEMORY_SHARE", raising=False)
    runs = {f"run{seed}": (*tiny, f"loop.seed={seed}") for seed in range(max(8, jobs))}
    fleet, told = Fleet(runs, tmp_path / "runs"), list[FleetProgress]()
    fleet.train(jobs, told.append)
    assert finished == set(runs)
    assert not fleet.failures
    assert (told[-1].jobs, told[-1].postponed) == (runs_at_a_time, postponed)
    assert max(held) < 1.001


def test_a_run_of_another_engine_is_not_taken_for_this_one(tmp_path: Path) -> None:
    config = load_config("demo", [*FIXED_OPTIONS, *SMALL])
    RunFolder.create(tmp_path / "a", config, Engine("trl", "1.16.0"))
    Fleet({"a": SMALL}, tmp_path, engines={"a": "trl"})
    with pytest.raises(PoiseError, match=r"/a was made by --engine trl, not native: remove it"):
        Fleet({"a": SMALL}, tmp_path)


def test_a_run_that_cannot_be_killed_does_not_keep_the_others_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals: list[str] = []

    class StuckRun:
        def __init__(self, name: str) -> None:
            self.name = name

        def terminate(self) -> None:
            signals.append(f"terminate {self.name}")

        def kill(self) -> None:
            signals.append(f"kill {self.name}")

        def wait(self, timeout: float) -> int:
            raise subprocess.TimeoutExpired(self.name, timeout)

    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.0)
    fleet = Fleet({"a": SMALL, "b": SMALL}, tmp_path)
    fleet._processes = {name: StuckRun(name) for name in "ab"}  # type: ignore[misc]
    fleet._interrupt_runs()
    assert signals == ["terminate a", "terminate b", "kill a", "kill b"]


def test_a_run_whose_log_is_gone_has_failed_without_output(tmp_path: Path) -> None:
    fleet = Fleet({"a": SMALL}, tmp_path)
    fleet._handle_failure("a", 1)
    assert fleet.failures == {"a": "no output"}


TORCH_WARNING = "[rank0]:[W1119 20:31:55.50 ProcessGroupNCCL.cpp:1524] Warning: WARNING: ..."


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (f"  1/4  44 %\npoise: no such task\n{TORCH_WARNING}\n", "no such task"),
        ("poise: a remark\nTraceback (most recent call last):\nKeyError: 'x'\n", "KeyError: 'x'"),
        ("  1/4  44 %\nsomething else\n", "something else"),
    ],
)
def test_a_failure_is_explained_by_our_own_last_line(tmp_path: Path, log: str, reason: str) -> None:
    fleet = Fleet({"a": SMALL}, tmp_path)
    (tmp_path / "a.log").write_text(log)
    fleet._handle_failure("a", 1)
    assert fleet.failures == {"a": reason}


def test_a_run_is_tried_again_whatever_torch_prints_below_our_line(tmp_path: Path) -> None:
    fleet = Fleet({"a": SMALL}, tmp_path)
    fleet._shares["a"], fleet._jobs = 0.25, 4
    (tmp_path / "a.log").write_text(f"poise: out of memory: vLLM cannot start\n{TORCH_WARNING}\n")
    fleet._handle_failure("a", 1)
    assert (fleet.failures, fleet._waiting, fleet._jobs) == ({}, ["a"], 3)


def test_the_progress_says_when_memory_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    running = {f"QB-lr0.0001-seed{seed}": 12 for seed in range(3)}
    well = FleetProgress(3, 8, running, 0.46, 90.0, jobs=4)
    assert str(well) == "3 of 8 runs"
    short = replace(well, failed=1, postponed=1, jobs=3)
    assert str(short) == "3 of 8 runs, 1 failed, memory ran out once: 3 at a time now"
    assert "memory ran out 2 times: 3 at a time now" in str(replace(short, postponed=2))
    with _Display(Console(width=80)) as display:
        display.show(short)
    runs = "QB-lr0.0001-seed0 12, QB-lr0.0001-seed1 12, QB-lr0.0001-seed2 12"
    assert capsys.readouterr().out == f"{short}, 46 %, 2 min left  [{runs}]\n"


@pytest.mark.slow
@pytest.mark.usefixtures("forked_runs")
def test_a_run_that_was_killed_says_by_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line of its log was of something else."""

    def print_and_be_killed() -> None:
        print("   3/40  success  44 %", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(cli, "main", print_and_be_killed)
    fleet = Fleet({"a": SMALL}, tmp_path / "runs")
    fleet.train(1)
    killed = "killed by SIGKILL, as the kernel does when memory is short"
    assert fleet.failures == {"a": killed}


def test_no_run_is_started_that_could_not_end_in_time(tmp_path: Path) -> None:
    fleet = Fleet({"a": SMALL}, tmp_path)
    fleet.train(1, minutes=0)
    assert not (tmp_path / "a").exists()


def test_two_commands_do_not_train_one_folder(tmp_path: Path) -> None:
    with (
        folder_lock(tmp_path),
        pytest.raises(PoiseError, match="is being written by another process: wait"),
    ):
        Fleet({"a": SMALL}, tmp_path).train(1)
