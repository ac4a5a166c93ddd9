"""One process of the torture: its share of every quota, in rounds."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import guided
import hostile_cases
from cases import Case, Share, Subject
from crashes import crash_cases
from damage import damage_cases
from fuzz import check_cases, command_cases, file_cases, line_cases
from journal import Journal
from live_faults import (
    clock_cases,
    disk_error_cases,
    memory_cases,
    signal_cases,
    two_writer_cases,
    worker_signal_cases,
)
from server import RunServer
from tally import Tally

# Every kind of fault advances by this share at a time, so that a short call has some of each.
ROUNDS = 50
NEEDS_LIBRARY = ("crashes", "disk errors", "memory", "clock")


def case_sources(subject: Subject, share: Share, journal: Journal) -> dict[str, Iterator[Case]]:
    """The cases of every kind of fault; nothing is recorded before the first one is needed."""
    return {
        "crashes": crash_cases(subject, share, journal.disks),
        "disk errors": disk_error_cases(subject, share),
        "memory": memory_cases(subject, share),
        "signals": signal_cases(subject, share),
        "worker signals": worker_signal_cases(subject, share),
        "clock": clock_cases(subject, share),
        "two writers": two_writer_cases(subject, share),
        "damage": damage_cases(subject, share),
        "fuzzed lines": line_cases(subject, share),
        "fuzzed files": file_cases(subject, share),
        "fuzzed checks": check_cases(subject, share),
        "fuzzed commands": command_cases(subject, share),
        hostile_cases.PHASE: hostile_cases.hostile_cases(subject, share),
        guided.PHASE: guided.guided_cases(subject, share, journal.folder),
    }


def work(
    server: RunServer,
    folder: Path,
    journal: Journal,
    share: Share,
    quotas: dict[str, int],
    seed: int,
    seconds: float,
) -> NoReturn:
    """Inject faults until the quotas are reached or the time is over, and end the process."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and ends workers
        folder.mkdir()
        inject_quotas(Subject(server, folder, seed), journal, share, quotas, seconds)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def inject_quotas(
    subject: Subject, journal: Journal, share: Share, quotas: dict[str, int], seconds: float
) -> None:
    deadline = time.monotonic() + seconds
    sources = case_sources(subject, share, journal)
    # What earlier calls did counts, whichever process did it.
    targets = {
        name: max(0, quota - journal.injected[name]) / share.processes
        for name, quota in quotas.items()
    }
    injected: Counter[str] = Counter()
    for number in range(1, ROUNDS + 1):
        for name, target in targets.items():
            while injected[name] < target * number / ROUNDS and time.monotonic() < deadline:
                case = next(sources[name], None)
                if case is None:
                    break
                if case.key not in journal.keys[name]:
                    injected[name] += inject(case, journal, share.worker)


def inject(case: Case, journal: Journal, worker: int) -> int:
    """Run a case and store what it counted; the number of faults."""
    tally, start = Tally(case.fault), time.monotonic()
    try:
        case.inject(tally)
    except Exception:  # of this harness, or of a function that it calls in process
        tally.tracebacks += 1
        tally.note(f"{case.phase} {case.key}: {traceback.format_exc()[-600:]}")
    journal.note_case(worker, case, tally, time.monotonic() - start)
    return tally.injected
