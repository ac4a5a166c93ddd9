"""Audits of the served runs: one at a time, each kept for as long as its run's files are the same.

A run that is being trained changes with every iteration. It is audited again only after REST times
the seconds that its last audit took: the older one is shown until then, so that watching a run
takes at most a tenth of a core.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from counterpoise import __version__
from counterpoise.errors import PoiseError, first_line
from counterpoise.serve.audit.audited_files import PAGE_FILE, RESULT_FILE, state_of_files
from counterpoise.serve.discover import check_links
from counterpoise.serve.index.manifest import index_folder
from counterpoise.serve.run_reader import RunReader

REST = 9.0
LEAST_REST_SECONDS = 10.0
FAILURE_REST_SECONDS = 60.0  # after an audit that ended without a result
RESULT_FIELDS = {"state", "seconds", "ended"}  # of audit.json, beside its report or its problem
# As report/audit/run_files.py has it, which would import half of the package into the server.
Progress = Callable[[str, int, int], None]  # (what, files read, files in all)


class AuditLauncher(Protocol):
    """How an audit is run: in a process of its own, or in this thread in tests."""

    def run(
        self, run_folder: Path, roots: Sequence[Path], folder: Path, progress: Progress
    ) -> None: ...
    def close(self) -> None: ...


class AuditSubprocess:
    """Runs an audit in a process of its own and waits for it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._is_closed = False

    def run(
        self, run_folder: Path, roots: Sequence[Path], folder: Path, progress: Progress
    ) -> None:
        if self._is_closed:
            return
        command = [sys.executable, "-m", "counterpoise.serve.audit.process"]
        self._process = subprocess.Popen(
            [*command, str(folder), str(run_folder), *map(str, roots)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        with self._process as process:
            for line in process.stdout or ():
                progress(*json.loads(line))
        if process.returncode and not self._is_closed:
            raise PoiseError(
                f"the audit ended with exit code {process.returncode}: "
                f"poise audit {run_folder} shows why"
            )

    def close(self) -> None:
        """End the audit that is running; its run is audited again when somebody asks."""
        self._is_closed = True
        if self._process and self._process.poll() is None:
            self._process.kill()


@dataclass(slots=True)
class AuditJob:
    """An audit that is under way or has failed."""

    state: list[list[int | str]]
    progress: tuple[str, int, int] = ("waiting", 0, 0)
    problem: str | None = None
    ended_at: float = 0.0  # by time.monotonic
    ended: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class AuditAnswer:
    """What is known of a run now."""

    result: dict[str, Any] | None  # of audit.json; None: not audited yet
    is_current: bool  # the result is of the files as they are now
    progress: tuple[str, int, int] | None  # (what is read, files, of how many) of one under way


class AuditShelf:
    """Audits by run folder.

    Example:
        shelf = AuditShelf(cache, AuditSubprocess())
        shelf.ask(reader, patience=0.4).result      None while the first one is under way
    """

    def __init__(self, cache: Path, launcher: AuditLauncher) -> None:
        self.cache = cache
        self.launcher = launcher
        self._jobs: dict[Path, AuditJob] = {}
        # run folder -> (modification time of audit.json, its content)
        self._results: dict[Path, tuple[int, dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # held by the audit that is running

    def close(self) -> None:
        self.launcher.close()

    def ask(self, reader: RunReader, patience: float) -> AuditAnswer:
        """The newest audit of a run; starts one if its files have changed, and waits a little."""
        # Checked here although the audit checks it too: a stored result may come from a server
        # that served other folders, where the link was allowed.
        check_links(reader.folder, reader.roots)
        state = state_of_files(reader.folder)
        result = self._read_result(reader.folder)
        # A problem may be over although the files of the run are the same: a full disk, say.
        if result is not None and result["state"] == state and "problem" not in result:
            return AuditAnswer(result, True, None)
        job = self._start_job(reader, state, result)
        if job is None:
            return AuditAnswer(result, False, None)
        job.ended.wait(patience)
        if not job.ended.is_set():
            return AuditAnswer(result, False, job.progress)
        if job.problem:
            raise PoiseError(job.problem)
        result = self._read_result(reader.folder)
        is_current = result is not None and result["state"] == state_of_files(reader.folder)
        return AuditAnswer(result, is_current, None)

    def page(self, reader: RunReader) -> Path:
        """The offline page of the newest audit; it may not be there."""
        return index_folder(self.cache, reader.folder) / PAGE_FILE

    def _start_job(
        self, reader: RunReader, state: list[list[int | str]], result: dict[str, Any] | None
    ) -> AuditJob | None:
        """The audit under way, or a new one; None while the last one is recent enough."""
        with self._lock:
            job = self._jobs.get(reader.folder)
            if job and not job.ended.is_set():
                return job
            # A failed audit is not repeated at once: it may have run for minutes before memory ran
            # out.
            ended_recently = job and time.monotonic() - job.ended_at < FAILURE_REST_SECONDS
            if job and job.problem and job.state == state and ended_recently:
                return job
            if result is not None:
                rest = max(LEAST_REST_SECONDS, REST * result["seconds"])
                if time.time() - result["ended"] < rest:
                    return None
            job = self._jobs[reader.folder] = AuditJob(state)
            threading.Thread(target=self._work, args=(reader, job), daemon=True).start()
            return job

    def _work(self, reader: RunReader, job: AuditJob) -> None:
        def note_progress(what: str, done: int, total: int) -> None:
            job.progress = (what, done, total)

        try:
            with self._turn:
                folder = index_folder(self.cache, reader.folder)
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                self.launcher.run(reader.folder, reader.roots, folder, note_progress)
            if self._read_result(reader.folder) is None:
                job.problem = f"the audit wrote no result: poise audit {reader.folder} shows why"
        except (PoiseError, OSError, ValueError) as fault:
            job.problem = first_line(fault)
        finally:
            job.ended_at = time.monotonic()
            job.ended.set()

    def _read_result(self, run_folder: Path) -> dict[str, Any] | None:
        """audit.json; None if it is absent, torn or of another version of the package."""
        path = index_folder(self.cache, run_folder) / RESULT_FILE
        try:
            written_at = path.stat().st_mtime_ns
            known = self._results.get(run_folder)
            if known is None or known[0] != written_at:
                known = (written_at, json.loads(path.read_bytes()))
                self._results[run_folder] = known
            result = known[1]
            is_usable = result["version"] == __version__ and result.keys() >= RESULT_FIELDS
        except (OSError, ValueError, LookupError, TypeError):
            return None
        return result if is_usable else None
