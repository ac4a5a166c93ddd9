"""Train many runs in parallel, each in its own process and folder, and resume what was stopped.

Each process has one CPU thread: two runs on two cores are quicker than one run on two, and a run's
numbers do not depend on its neighbours. `POISE_JOBS` sets how many run at a time, by default one
per core; a GPU takes more. Runs on one GPU get equal shares of its memory (model/memory_share.py).
They are forks of a process that has imported everything (fork_server.py).

A finished run has finished.json and is never trained again; a run that was killed continues from
its last checkpoint. With a time limit, a run is started only if the slowest run so far would have
finished in time, and whatever still runs at the limit is interrupted.

A run that reports that memory ran out beside others is tried again with a larger share, so from
then on a quarter fewer run at a time, which is reported. It has failed if it had the machine, and
all memory of the GPU, to itself, or if it was killed: the system kills for other reasons too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from counterpoise.config import RunConfig
from counterpoise.config.load import load_config, plugin_overrides
from counterpoise.errors import PoiseError
from counterpoise.files import atomic_write, folder_lock
from counterpoise.hosts.choose_engine import stored_engine
from counterpoise.lab.experiments.fork_server import ForkedRun, ForkServer
from counterpoise.model.memory_share import MEMORY_SHARE_VARIABLE, memory_share
from counterpoise.run.interrupts import sigterm_as_interrupt
from counterpoise.store.finished import is_finished
from counterpoise.store.folder import CONFIG, RunFolder, is_run
from counterpoise.store.resume import config_differences, find_config_damage

FIXED_OPTIONS = ("loop.threads=1",)
RUN_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
POLL_SECONDS = 0.2  # between checks of the processes
MAX_EARLY_FAILURES = 3  # after so many failures and no success, the other runs are not tried
GRACE_SECONDS = 30.0  # for an interrupted run to save and exit, before it is killed
MESSAGE_PREFIX = "poise: "
OUT_OF_MEMORY_PREFIX = "poise: out of memory"  # begins the last message of such a run's log
OUT_OF_MEMORY_HINT = ", as the kernel does when memory is short"


@dataclass(frozen=True, slots=True)
class FleetProgress:
    """How far the runs of a fleet are.

    Example:
        FleetProgress(3, total=8, running={"QB-lr0.0001-seed1": 12}, done_share=0.46, ...)
        str(...)                                    # "3 of 8 runs"
    """

    finished: int
    total: int
    running: Mapping[str, int]  # name -> iterations done
    done_share: float  # of all iterations of all runs
    seconds_left: float | None  # None: not known yet
    failed: int = 0
    postponed: int = 0  # times a run was put back because memory ran out
    jobs: int = 1  # runs at a time, now

    def __str__(self) -> str:
        summary = f"{self.finished} of {self.total} runs"
        summary += f", {self.failed} failed" if self.failed else ""
        if self.postponed:
            times = "once" if self.postponed == 1 else f"{self.postponed} times"
            summary += f", memory ran out {times}: {self.jobs} at a time now"
        return summary


class Fleet:
    """Named runs with their options, trained in parallel processes.

    All options are checked here, before anything is trained; a folder that holds another run is
    refused.

    Example:
        fleet = Fleet({"a": ["loop.seed=0"], "b": ["loop.seed=1"]}, Path("out"), base="demo")
        fleet.train(jobs=2, minutes=10)
        fleet.failures                              # {"b": "the last line of its log"}
    """

    def __init__(
        self,
        runs: Mapping[str, Sequence[str]],
        folder: Path,
        *,
        base: str | Path = "demo",
        start_digest: str = "",
        engines: Mapping[str, str] | None = None,
    ) -> None:
        """`engines` has the name of the engine for every run that does not train natively."""
        self.folder, self.base = folder, base
        self.engines = engines or {}
        self.start_digest = start_digest  # of the weights that runs begin with, if known
        self.options = {run_name: (*FIXED_OPTIONS, *options) for run_name, options in runs.items()}
        self.failures: dict[str, str] = {}
        self._configs = {run_name: self._checked_config(run_name) for run_name in runs}
        self._iterations_done = {run_name: self._count_iterations(run_name) for run_name in runs}
        self._processes: dict[str, ForkedRun] = {}
        self._waiting: list[str] = []
        self._jobs = 1  # runs at a time
        self._postponed = 0
        self._shares: dict[str, float] = {}  # of the memory, by run: what it began with
        self._start_times: dict[str, float] = {}
        self._slowest_seconds = 0.0  # the slowest run so far, from start to end
        self._any_finished = self._stopping = False

    def train(
        self,
        jobs: int,
        on_progress: Callable[[FleetProgress], None] = lambda progress: None,
        on_finish: Callable[[str], None] = lambda name: None,
        minutes: float | None = None,
    ) -> None:
        """Train until all runs have finished or failed, or the time is up.

        `on_finish` is called with the name of every run that finishes.
        """
        start_time = time.monotonic()
        deadline = start_time + 60 * minutes if minutes is not None else None
        self._waiting = [run_name for run_name in self.options if not self.finished(run_name)]
        self._jobs = jobs
        iterations_before = sum(self._iterations_done.values())
        self.folder.mkdir(parents=True, exist_ok=True)
        # The runs inherit the lock: if this command is killed, a second one cannot start them again
        # while they are still running.
        with (
            folder_lock(self.folder) as lock,
            sigterm_as_interrupt(),
            ForkServer(RUN_ENVIRONMENT, pass_fds=(lock,)) as server,
        ):
            try:
                while self._waiting or self._processes:
                    while self._has_room() and self._in_time(deadline):
                        self._start(self._waiting.pop(0), server)
                    is_late = deadline is not None and time.monotonic() > deadline
                    # No process here means that nothing more can finish before the deadline.
                    if not self._processes or is_late or self._all_fail():
                        break
                    time.sleep(POLL_SECONDS)
                    self._collect_exited(on_finish)
                    on_progress(self._progress(start_time, iterations_before))
            finally:
                self._stopping = True
                self._interrupt_runs()
                self._collect_exited(on_finish)

    def finished(self, run_name: str) -> bool:
        """Whether the run has made all its iterations."""
        return is_finished(self.folder / run_name, self._configs[run_name].loop.iterations)

    def stored_start(self, run_name: str) -> str:
        """The digest of the weights that the run began with; if none is stored, the model's."""
        digest_path = self._start_path(run_name)
        return digest_path.read_text().strip() if digest_path.is_file() else self.start_digest

    # -- one run -------------------------------------------------------------------------------

    def _start_path(self, run_name: str) -> Path:
        """RUN.start, beside the run folder: written before the run is started."""
        return self.folder / f"{run_name}.start"

    def check_start(self, run_name: str) -> None:
        """Refuse a run that began with other weights than the model has now."""
        if self.stored_start(run_name) != self.start_digest:
            run_folder = self.folder / run_name
            raise PoiseError(
                f"{run_folder} was started from other weights than the model has now: remove it to "
                "train it again, or restore the weights"
            )

    def _checked_config(self, run_name: str) -> RunConfig:
        """The options of a run; raises an error if its folder holds a run with other options."""
        config = load_config(self.base, list(self.options[run_name]))
        run_folder = self.folder / run_name
        if is_run(run_folder):
            engine, stored = self._engine(run_name), stored_engine(run_folder)
            if stored != engine:
                raise PoiseError(
                    f"{run_folder} was made by --engine {stored}, not {engine}: remove it, or "
                    "choose another --out"
                )
            if damage := find_config_damage(run_folder / CONFIG):
                raise PoiseError(
                    f"{run_folder / CONFIG} {damage}: remove {run_folder} to train it again"
                )
            stored_config = RunFolder.open(run_folder).read_config()
            if differences := config_differences(stored_config, config):
                option, stored_value, requested_value = differences[0]
                raise PoiseError(
                    f"{run_folder} was made with {option}={stored_value!r}, not "
                    f"{requested_value!r}: remove it, or choose another --out"
                )
            if not is_finished(run_folder, config.loop.iterations):
                self.check_start(run_name)
        return config

    def _start(self, run_name: str, server: ForkServer) -> None:
        """Start a run through the command line: exactly the run that a user would start."""
        run_folder = self.folder / run_name
        arguments = ["train", "--out", str(run_folder)]
        # A resumed run takes its options from its folder, so they are not passed again.
        if is_run(run_folder):
            arguments.append("--resume")
        else:
            # Plugin files are pinned, so that editing one does not change runs that start later.
            plugin_pins = plugin_overrides(self._configs[run_name])
            options = (*self.options[run_name], *plugin_pins)
            arguments += [str(self.base), "--engine", self._engine(run_name)]
            arguments += [f"--set={option}" for option in options]
            self._start_times[run_name] = time.monotonic()
            if self.start_digest:
                with atomic_write(self._start_path(run_name)) as temporary:
                    temporary.write_text(f"{self.start_digest}\n")
        share = self._shares[run_name] = self._next_share()
        environment = {MEMORY_SHARE_VARIABLE: f"{memory_share() * share:.4f}"}
        self._processes[run_name] = server.start(arguments, environment, self._log_path(run_name))

    def _engine(self, run_name: str) -> str:
        return self.engines.get(run_name, "native")

    def _log_path(self, run_name: str) -> Path:
        return self.folder / f"{run_name}.log"

    def _collect_exited(self, on_finish: Callable[[str], None]) -> None:
        """Collect the processes that have exited."""
        for run_name, process in list(self._processes.items()):
            exit_code = process.poll()
            if exit_code is None:
                continue
            del self._processes[run_name]
            self._iterations_done[run_name] = self._count_iterations(run_name)
            # finished.json decides, not the exit code: a run may be stopped after its last step.
            if self.finished(run_name):
                self._any_finished = True
                if run_name in self._start_times:
                    self._slowest_seconds = max(
                        self._slowest_seconds, time.monotonic() - self._start_times[run_name]
                    )
                self._log_path(run_name).unlink(missing_ok=True)
                on_finish(run_name)
            elif not self._stopping:
                self._handle_failure(run_name, exit_code)

    def _handle_failure(self, run_name: str, exit_code: int) -> None:
        log_path = self._log_path(run_name)
        log_text = log_path.read_text(errors="replace").strip() if log_path.is_file() else ""
        reason = _last_message(log_text)
        # Killed by a signal: the last line of the log does not say why.
        if exit_code < 0:
            reason = f"killed by {signal.Signals(-exit_code).name}"
            if exit_code == -signal.SIGKILL:
                reason += OUT_OF_MEMORY_HINT
        # Out of memory beside other runs: try again with a larger share. How many are too many its
        # own share says, not the number that still run: all with this share may be failing now.
        if reason.startswith(OUT_OF_MEMORY_PREFIX) and self._shares[run_name] < 1:
            too_many = round(1 / self._shares[run_name])
            self._jobs = min(self._jobs, too_many * 3 // 4)
            self._postponed += 1
            self._waiting.insert(0, run_name)
            self._start_times.pop(run_name, None)
        else:
            self.failures[run_name] = reason.removeprefix(MESSAGE_PREFIX)

    def _interrupt_runs(self) -> None:
        """Stop all runs as Ctrl-C does: a run keeps its last checkpoint and closes its verifier.

        SIGTERM, not SIGINT: processes started in the background ignore SIGINT.
        """
        for process in self._processes.values():
            process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        for process in self._processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                # One that cannot even be killed, as it waits for a dead disk, keeps nobody waiting.
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_SECONDS)

    # -- the fleet -----------------------------------------------------------------------------

    def _all_fail(self) -> bool:
        """Whether the first few runs all failed: the cause is the machine or the model."""
        return not self._any_finished and len(self.failures) >= MAX_EARLY_FAILURES

    def _next_share(self) -> float:
        """Of the memory that this command may take of a GPU, what the run that starts now gets.

        Where few are left, fewer run at a time than there are jobs. Neither the jobs nor the runs
        that are left ever grow, so shares only grow, and those held at a time sum to at most 1.
        """
        return 1 / min(self._jobs, len(self._processes) + 1 + len(self._waiting))

    def _has_room(self) -> bool:
        return bool(self._waiting) and len(self._processes) < self._jobs

    def _in_time(self, deadline: float | None) -> bool:
        return deadline is None or time.monotonic() + self._slowest_seconds < deadline

    def _count_iterations(self, run_name: str) -> int:
        metrics_file = self.folder / run_name / "metrics.jsonl"
        return metrics_file.read_bytes().count(b"\n") if metrics_file.exists() else 0

    def _progress(self, start_time: float, iterations_before: int) -> FleetProgress:
        running = {run_name: self._count_iterations(run_name) for run_name in self._processes}
        # The estimate counts only iterations made since this call: resumed runs would make it
        # too optimistic.
        self._iterations_done |= running
        iterations_done = sum(self._iterations_done.values())
        iterations_by_run = {
            run_name: config.loop.iterations for run_name, config in self._configs.items()
        }
        total_iterations = sum(iterations_by_run.values())
        elapsed_seconds, new_iterations = (
            time.monotonic() - start_time,
            iterations_done - iterations_before,
        )
        unfinished = [
            run_name
            for run_name in self.options
            if run_name in running or self._iterations_done[run_name] < iterations_by_run[run_name]
        ]
        iterations_left = sum(
            iterations_by_run[run_name] - self._iterations_done[run_name]
            for run_name in unfinished
            if run_name not in self.failures
        )
        return FleetProgress(
            finished=len(iterations_by_run) - len(unfinished),
            total=len(self.options),
            running=running,
            done_share=iterations_done / total_iterations,
            seconds_left=elapsed_seconds * iterations_left / new_iterations
            if new_iterations > 0
            else None,
            failed=len(self.failures),
            postponed=self._postponed,
            jobs=self._jobs,
        )


def _last_message(log_text: str) -> str:
    """The line of a run's log that says why it failed.

    It is our last one, as torch may print warnings below it while the process ends. If a traceback
    follows, or there is none of ours, it is the last line.
    """
    lines = log_text.splitlines() or ["no output"]
    for line in reversed(lines):
        if line.startswith("Traceback "):
            break
        if line.startswith(MESSAGE_PREFIX):
            return line
    return lines[-1]


def train_runs(
    runs: Mapping[str, Sequence[str]],
    folder: Path,
    progress: Callable[[str, float], None],
    start_digest: str = "",
) -> dict[str, RunFolder]:
    """Train all runs (name -> --set overrides of the demo); the first failure stops the others.

    `start_digest` identifies the weights that they begin with; a run of other ones is refused.
    """
    fleet = Fleet(runs, folder, start_digest=start_digest)
    for run_name in runs:
        fleet.check_start(run_name)

    def report(fleet_progress: FleetProgress) -> None:
        _raise_failure(fleet)
        progress(str(fleet_progress), fleet_progress.done_share)

    fleet.train(number_of_jobs(), report)
    _raise_failure(fleet)
    return {run_name: RunFolder.open(folder / run_name) for run_name in runs}


def _raise_failure(fleet: Fleet) -> None:
    for run_name, reason in fleet.failures.items():
        raise PoiseError(f"the run in {fleet.folder / run_name} failed: {reason}")


def number_of_jobs() -> int:
    """How many runs to train at a time: $POISE_JOBS, or one per core."""
    jobs = os.environ.get("POISE_JOBS", "")
    if not jobs:
        return os.cpu_count() or 1
    if not jobs.isdigit() or int(jobs) < 1:
        raise PoiseError(f"POISE_JOBS={jobs}: set it to the number of parallel runs, 1 or more")
    return int(jobs)
