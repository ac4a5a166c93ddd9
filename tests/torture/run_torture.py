"""Torture small runs: `make torture`.

    python tests/torture/run_torture.py --minutes 60 --processes 2 --state out/torture

Injects the quota of every kind of fault and prints a table of what was injected and of what went
wrong; ends with code 1 if anything did. A call that is interrupted, or whose minutes are over, goes
on where it stopped when it is called again with the same --state.
Without a C compiler the system calls cannot be watched: then only damage and fuzzing are tried.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
PRELOADED = "POISE_TORTURE_PRELOADED"
SCRATCH = "POISE_TORTURE_SCRATCH"
# Faults of each kind in a whole call: crash points, calls that fail, ..., fuzzed lines and files.
QUOTAS = {
    "crashes": 10_500,
    "disk errors": 720,  # these two end with the last call and the last allocation of a run
    "memory": 450,
    "signals": 150,
    "worker signals": 20,
    "clock": 100,
    "two writers": 100,
    "damage": 500,
    "fuzzed lines": 600_000,
    "fuzzed files": 395_000,
    "fuzzed checks": 5_000,
    "fuzzed commands": 500,
    "hostile models": 500,
    "fuzzed by coverage": 40_000,
}
TICK_SECONDS = 10.0

if TYPE_CHECKING:
    from journal import Journal
    from tally import Tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cases", type=int, default=1 << 40, help="at most, of each kind of fault")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state", type=Path, help="folder that remembers what was done")
    parser.add_argument("--page", type=Path, help="write the table into this page")
    parser.add_argument("--only", choices=sorted(QUOTAS), help="one kind of fault")
    options = parser.parse_args()
    if PRELOADED not in os.environ:
        return restart_with_library(options)
    return torture(Path(os.environ[SCRATCH]), options)


def restart_with_library(options: argparse.Namespace) -> int:
    """Run this script again with the library that watches system calls."""
    from images import build_library

    memory_disk = Path("/dev/shm")
    parent = memory_disk if memory_disk.is_dir() else Path(tempfile.gettempdir())
    # Stored options name files of this folder: with a state it has the same name in every call, so
    # that equal disks are recognised.
    name = hashlib.sha256(str((options.state or Path(str(os.getpid()))).resolve()).encode())
    scratch = parent / f"torture-{name.hexdigest()[:12]}"
    scratch.mkdir(exist_ok=True)
    lock = os.open(scratch, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"another call uses {options.state}: wait until it ends, or choose another --state")
        return 2
    for entry in scratch.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    library = build_library(scratch)
    environment = {**os.environ, PRELOADED: str(library or ""), SCRATCH: str(scratch)}
    if library is not None:
        environment["LD_PRELOAD"] = str(library)
    child = subprocess.Popen([sys.executable, *sys.argv], env=environment)
    for kind in (signal.SIGTERM, signal.SIGINT):  # the child hears Ctrl-C itself, and ends orderly
        signal.signal(kind, lambda *_: child.terminate())
    code = child.wait()
    shutil.rmtree(scratch, ignore_errors=True)
    return code


def torture(scratch: Path, options: argparse.Namespace) -> int:
    from cases import Share
    from guided import format_guided_table, read_progress
    from journal import Journal, StateError
    from server import RunServer
    from tally import format_table, sum_tallies, write_table
    from worker import work

    state = options.state or scratch / "state"
    try:
        journal = Journal.open(state, options.seed)
    except StateError as fault:
        print(fault)
        return 2
    quotas = choose_quotas(options)
    server, seconds = RunServer(scratch), 60 * options.minutes
    pids = []
    for worker in range(options.processes):
        pid = os.fork()
        if not pid:
            share = Share(worker, options.processes)
            work(
                server, scratch / f"worker-{worker}", journal, share, quotas, options.seed, seconds
            )
        pids.append(pid)
    crashed = watch(pids, journal, options)
    journal = Journal.open(state, options.seed)
    rows = order_rows(sum_tallies(journal.tallies()))
    for tally in rows:
        for example in tally.examples:
            print(f"{tally.fault}: {example}\n")
    print(format_table(rows))
    if progress := read_progress(state):
        print(format_guided_table(progress))
    if options.page:
        write_table(options.page, rows, describe_calls(journal, options, quotas))
    if missing := missing_quotas(journal, quotas):
        print(f"not done yet: {missing}; the same command goes on where this one stopped")
    return 0 if not crashed and all(tally.is_clean for tally in rows) else 1


def choose_quotas(options: argparse.Namespace) -> dict[str, int]:
    from worker import NEEDS_LIBRARY

    quotas = {name: min(quota, options.cases) for name, quota in QUOTAS.items()}
    if not os.environ[PRELOADED]:
        print("no C compiler (cc): system calls are not watched")
        quotas = {name: quota for name, quota in quotas.items() if name not in NEEDS_LIBRARY}
    return {options.only: quotas[options.only]} if options.only else quotas


def watch(pids: list[int], journal: Journal, options: argparse.Namespace) -> bool:
    """Print progress until all workers have ended; whether one of them crashed."""
    from journal import Journal

    def stop(*_: object) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    start = last = time.monotonic()
    crashed = False
    while pids:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            pids.remove(pid)
            crashed |= os.waitstatus_to_exitcode(status) not in (0, -signal.SIGTERM)
        now = time.monotonic()
        if now - last >= TICK_SECONDS or not pids:
            journal.note_time(now - last, options.processes)
            last = now
            current = Journal.open(journal.folder, options.seed)
            counts = ", ".join(f"{name} {count:,}" for name, count in current.injected.items())
            bad = sum(not tally.is_clean for tally in current.tallies())
            print(f"{(now - start) / 60:5.1f} min  {counts}; {bad} bad", flush=True)
        time.sleep(0.2)
    return crashed


def missing_quotas(journal: Journal, quotas: dict[str, int]) -> str:
    """Kinds of faults whose quota is not reached, with their counts."""
    return ", ".join(
        f"{name} {journal.injected[name]:,} of {quota:,}"
        for name, quota in quotas.items()
        if journal.injected[name] < quota and name not in ("disk errors", "memory")
    )


def describe_calls(journal: Journal, options: argparse.Namespace, quotas: dict[str, int]) -> str:
    minutes = " and ".join(
        f"{minutes:.0f} minutes of {processes} process{'es' if processes > 1 else ''}"
        for processes, minutes in sorted(journal.minutes_by_processes().items())
    )
    return (
        f"Seed {options.seed}, {minutes}, {datetime.now(UTC):%Y-%m-%d}. "
        f"Equal disks are resumed once.{describe_rest(journal, quotas)}"
    )


def describe_rest(journal: Journal, quotas: dict[str, int]) -> str:
    """What the whole call would have, if this one was stopped before."""
    if not missing_quotas(journal, quotas):
        return ""
    points = quotas.get("crashes", 0)
    inputs = sum(quota for name, quota in quotas.items() if name.startswith("fuzzed"))
    return f" Stopped early: a whole call has {points:,} crash points and {inputs:,} fuzzed inputs."


def order_rows(rows: list[Tally]) -> list[Tally]:
    """Workers and rounds mix the faults: crashes first, as in QUOTAS, then by name."""
    from crashes import AGAIN, FIRST
    from live_faults import DISK_ERRORS

    known = [*FIRST.values(), *AGAIN.values(), *DISK_ERRORS.values()]
    return sorted(
        rows,
        key=lambda tally: (
            known.index(tally.fault) if tally.fault in known else len(known),
            tally.fault.startswith("fuzzed"),
            tally.fault,
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
