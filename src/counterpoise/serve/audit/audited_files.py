"""Tell whether the files that an audit reads have changed since."""

from __future__ import annotations

import os
from pathlib import Path

RESULT_FILE, PAGE_FILE = "audit.json", "audit.html"  # in the run's folder of the cache
READ_FOLDERS = ("", "rollouts", "tokens")  # inside the run folder; "" is the run folder itself


def state_of_files(run_folder: Path) -> list[list[int | str]]:
    """(folder, number of files, their bytes, newest change in ns) for each of READ_FOLDERS."""
    state: list[list[int | str]] = []
    for name in READ_FOLDERS:
        sizes, times = [], []
        try:
            with os.scandir(run_folder / name) as entries:
                for entry in entries:
                    if entry.is_file():
                        status = entry.stat()
                        sizes.append(status.st_size)
                        times.append(status.st_mtime_ns)
        except OSError:
            pass
        state.append([name, len(sizes), sum(sizes), max(times, default=0)])
    return state
