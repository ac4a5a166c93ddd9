"""Training runs side by side: one folder and one process a run, several at a time, taken up again.

Each process has one CPU thread: two runs on two cores are quicker than one run on two, and a run's
numbers do not depend on its neighbours. `POISE_JOBS` says how many run at a time where that is not
one a core: a GPU takes more.

What has ended is marked by finished.json and never trained again; a run that was killed goes on
from its last checkpoint. With a time limit no run is started that the slowest one so far could not
have ended in time, and what still runs at the limit is interrupted.

A run that had too little memory beside its neighbours waits until one of them has ended, and from
then on fewer run at a time, which is told; it has failed if it had the machine to itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from counterpoise.config import RunConfig
from counterpoise.config.load import load_config, pins
from counterpoise.errors import PoiseError
from counterpoise.files import alone
from counterpoise.run.interrupts import terminated_is_interrupted
from counterpoise.store.finished import finished
from counterpoise.store.folder import CONFIG, RunFolder, is_run
from counterpoise.store.resume import config_damage, differences

FIXED_OPTIONS = ("loop.threads=1",)
POLL_SECONDS = 0.2  # seconds between looks at the processes
MAX_EARLY_FAILURES = 3  # failures before anything has ended
GRACE_SECONDS = 30.0  # seconds an interrupted run has to end
OUT_OF_MEMORY_PREFIX = "poise: out of memory"  # how a run that memory ended begins its last line
OUT_OF_MEMORY_HINT = ", as the kernel does when memory is short"


@dataclass(frozen=True, slots=True)
class FleetProgress:
    """How far the runs are.

    Example:
        Standing(ended=3, total=8, running={"QB-lr0.0001-seed1": 12}, share=0.46, seconds_left=90.0)
        str(...)                                    # "3 of 8 runs"
    """

    finished: int
    total: int
    running: Mapping[str, int]  # name -> iterations behind it
    done_share: float  # of all iterations of all runs
    seconds_left: float | None  # None: too early to say
    failed: int = 0
    postponed: int = 0  # times a run found no memory beside the others
    jobs: int = 1  # that run at a time now

    def __str__(self) -> str:
        told = f"{self.finished} of {self.total} runs"
        told += f", {self.failed} failed" if self.failed else ""
        if self.postponed:
            times = "once" if self.postponed == 1 else f"{self.postponed} times"
            told += f", memory ran out {times}: {self.jobs} at a time now"
        return told


class Fleet:
    """Names, the options of each, and where they are.

    Every fault of the options is found here, before anything is trained; a folder that holds
    another run is refused.

    Example:
        fleet = Fleet({"a": ["loop.seed=0"], "b": ["loop.seed=1"]}, Path("out"), base="demo")
        fleet.train(jobs=2, minutes=10)
        fleet.failures                              # {"b": "what it said last"}
    """

    def __init__(
        self, runs: Mapping[str, Sequence[str]], folder: Path, *, base: str | Path = "demo"
    ) -> None:
        self.folder, self.base = folder, base
        self.options = {name: (*FIXED_OPTIONS, *options) for name, options in runs.items()}
        self.failures: dict[str, str] = {}
        self._configs = {name: self._checked(name) for name in runs}
        self._behind = {name: self._iterations(name) for name in runs}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._waiting: list[str] = []
        self._jobs = 1  # that run at a time
        self._postponed = 0
        self._started: dict[str, float] = {}
        self._slowest = 0.0  # seconds of a whole run
        self._any_ended = self._stopping = False

    def train(
        self,
        jobs: int,
        on_progress: Callable[[FleetProgress], None] = lambda standing: None,
        on_finish: Callable[[str], None] = lambda name: None,
        minutes: float | None = None,
    ) -> None:
        """Until all have ended or failed, or the time is up; `ended` hears of each that ends."""
        start = time.monotonic()
        until = start + 60 * minutes if minutes is not None else None
        self._waiting = [name for name in self.options if not self.finished(name)]
        self._jobs = jobs
        before = sum(self._behind.values())
        self.folder.mkdir(parents=True, exist_ok=True)
        # The runs hold the lock too: those of a command that was killed are not started twice.
        with alone(self.folder) as lock, terminated_is_interrupted():
            try:
                while self._waiting or self._processes:
                    while self._room() and self._in_time(until):
                        self._start(self._waiting.pop(0), lock)
                    late = until is not None and time.monotonic() > until
                    if not self._processes or late or self._hopeless():
                        break
                    time.sleep(POLL_SECONDS)
                    self._gather(on_finish)
                    on_progress(self._standing(start, before))
            finally:
                self._stopping = True
                self._interrupt()
                self._gather(on_finish)

    def finished(self, name: str) -> bool:
        return finished(self.folder / name, self._configs[name].loop.iterations)

    # -- one run -------------------------------------------------------------------------------

    def _checked(self, name: str) -> RunConfig:
        wanted, out = load_config(self.base, list(self.options[name])), self.folder / name
        if is_run(out):
            if damage := config_damage(out / CONFIG):
                raise PoiseError(f"{out / CONFIG} {damage}: remove {out}, and it is trained again")
            for option, before, after in differences(RunFolder.open(out).config(), wanted):
                raise PoiseError(
                    f"{out} was made with {option}={before!r}, not {after!r}: remove it, or choose "
                    "another --out"
                )
        return wanted

    def _start(self, name: str, lock: int) -> None:
        """Through the command line, so that it is the run a user would make."""
        out = self.folder / name
        command = [sys.executable, "-m", "counterpoise.cli", "train", "--out", str(out)]
        if is_run(out):
            command.append("--resume")
        else:
            mine = pins(self._configs[name])  # an edit does not reach later runs
            options = (*self.options[name], *mine)
            command += [str(self.base), *(f"--set={each}" for each in options)]
            self._started[name] = time.monotonic()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        with self._log(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C is for us to pass on
                pass_fds=(lock,),
            )

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _gather(self, ended: Callable[[str], None]) -> None:
        """Take note of the processes that are over."""
        for name, process in list(self._processes.items()):
            code = process.poll()
            if code is None:
                continue
            del self._processes[name]
            self._behind[name] = self._iterations(name)
            if self.finished(name):
                self._any_ended = True
                if name in self._started:
                    self._slowest = max(self._slowest, time.monotonic() - self._started[name])
                self._log(name).unlink(missing_ok=True)
                ended(name)
            elif not self._stopping:
                self._failed(name, code)

    def _failed(self, name: str, code: int) -> None:
        said = self._log(name).read_text(errors="replace").strip() or "it said nothing"
        last = said.splitlines()[-1]
        if code < 0:  # its last line is of something else
            last = f"killed by {signal.Signals(-code).name}" + OUT_OF_MEMORY_HINT * (
                code == -signal.SIGKILL
            )
        if last.startswith(OUT_OF_MEMORY_PREFIX) and self._processes:
            self._jobs = len(self._processes)
            self._postponed += 1
            self._waiting.insert(0, name)
            self._started.pop(name, None)
        else:
            self.failures[name] = last.removeprefix("poise: ")

    def _interrupt(self) -> None:
        """As Ctrl-C does: a run keeps its last checkpoint, and its verifier ends with it.

        Not by SIGINT: started in the background, the runs would not hear it.
        """
        for process in self._processes.values():
            process.terminate()
        until = time.monotonic() + GRACE_SECONDS
        for process in self._processes.values():
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    # -- all of them ---------------------------------------------------------------------------

    def _hopeless(self) -> bool:
        """The first few failed: it is not the run, it is the machine or the model."""
        return not self._any_ended and len(self.failures) >= MAX_EARLY_FAILURES

    def _room(self) -> bool:
        return bool(self._waiting) and len(self._processes) < self._jobs

    def _in_time(self, until: float | None) -> bool:
        return until is None or time.monotonic() + self._slowest < until

    def _iterations(self, name: str) -> int:
        log = self.folder / name / "metrics.jsonl"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def _standing(self, start: float, before: int) -> FleetProgress:
        running = {name: self._iterations(name) for name in self._processes}
        self._behind |= running
        behind = sum(self._behind.values())
        wanted = {name: config.loop.iterations for name, config in self._configs.items()}
        total = sum(wanted.values())
        seconds, made = time.monotonic() - start, behind - before
        left = [n for n in self.options if n in running or self._behind[n] < wanted[n]]
        to_make = sum(wanted[n] - self._behind[n] for n in left if n not in self.failures)
        return FleetProgress(
            finished=len(wanted) - len(left),
            total=len(self.options),
            running=running,
            done_share=behind / total,
            seconds_left=seconds * to_make / made if made > 0 else None,
            failed=len(self.failures),
            postponed=self._postponed,
            jobs=self._jobs,
        )


def train_runs(
    runs: Mapping[str, Sequence[str]], folder: Path, progress: Callable[[str, float], None]
) -> dict[str, RunFolder]:
    """Train every run (name -> --set overrides of the demo) to its end; a failure ends them all."""
    fleet = Fleet(runs, folder)

    def tell(standing: FleetProgress) -> None:
        _raise(fleet)
        progress(str(standing), standing.done_share)

    fleet.train(number_of_jobs(), tell)
    _raise(fleet)
    return {name: RunFolder.open(folder / name) for name in runs}


def _raise(fleet: Fleet) -> None:
    for name, said in fleet.failures.items():
        raise PoiseError(f"the run in {fleet.folder / name} failed: {said}")


def number_of_jobs() -> int:
    given = os.environ.get("POISE_JOBS", "")
    if not given:
        return os.cpu_count() or 1
    if not given.isdigit() or int(given) < 1:
        raise PoiseError(f"POISE_JOBS={given}: the number of runs at a time, 1 or more")
    return int(given)
