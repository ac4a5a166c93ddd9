"""Torture a small run: `make torture`.

    python tests/torture/run.py --minutes 20 --seed 1 --page docs/results/trust.md

Prints a table of the faults injected and of what went wrong, and ends with code 1 if anything did.
Without a C compiler the system calls cannot be watched: then only damage and fuzzing are tried.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
PRELOADED = "POISE_TORTURE_PRELOADED"
SHARES = {"crashes": 0.45, "disk errors": 0.2, "signals": 0.1, "damage": 0.1, "fuzzing": 0.15}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--cases", type=int, default=1 << 40, help="at most, for each phase")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--page", type=Path, help="write the table into this page")
    parser.add_argument("--only", choices=sorted(SHARES), help="one kind of fault, all the time")
    options = parser.parse_args()
    scratch = "/dev/shm" if Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="torture-", dir=scratch))
    try:
        if PRELOADED not in os.environ:
            return restart_with_library(folder)
        return torture(folder, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def restart_with_library(folder: Path) -> int:
    """Run this script again with the library that watches system calls."""
    import subprocess

    from images import build_library

    library = build_library(folder)
    environment = {**os.environ, PRELOADED: str(library or "")}
    if library is not None:
        environment["LD_PRELOAD"] = str(library)
    return subprocess.call([sys.executable, *sys.argv], env=environment)


def torture(folder: Path, options: argparse.Namespace) -> int:
    from fuzz import fuzz_readers
    from phases import Torture
    from server import RunServer
    from tally import Budget, format_table, write_table

    start, seconds = time.monotonic(), 60 * options.minutes
    subject = Torture(RunServer(folder), folder, options.seed)
    phases = {
        "crashes": subject.crash_everywhere,
        "disk errors": subject.disk_errors,
        "signals": subject.signals,
        "damage": subject.damage,
        "fuzzing": lambda budget: fuzz_readers(subject, budget),
    }
    if not os.environ[PRELOADED]:
        print("no C compiler (cc): system calls are not watched")
        del phases["crashes"], phases["disk errors"]
    if options.only:
        phases = {options.only: phases[options.only]}
    tallies = []
    remaining_share = sum(SHARES[name] for name in phases)
    for name, phase in phases.items():
        # What earlier phases left over goes to the later ones.
        left = seconds - (time.monotonic() - start)
        results = phase(Budget.of(left * SHARES[name] / remaining_share, options.cases))
        remaining_share -= SHARES[name]
        tallies += results
        for tally in results:
            print(f"{tally}", flush=True)
    print(format_table(tallies))
    if options.page:
        minutes = (time.monotonic() - start) / 60
        remark = (
            f"Seed {options.seed}, {minutes:.0f} minutes on {os.cpu_count()} cores, "
            f"{datetime.now(UTC):%Y-%m-%d}. Equal disks are tried once."
        )
        write_table(options.page, tallies, remark)
    return 0 if all(tally.is_clean for tally in tallies) else 1


if __name__ == "__main__":
    sys.exit(main())
