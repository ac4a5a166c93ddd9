"""The files of a run that an audit reads: have they changed, and may they be read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from counterpoise.errors import PoiseError
from counterpoise.serve.discover import is_inside

RESULT_FILE, PAGE_FILE = "audit.json", "audit.html"  # in the run's folder of the cache
# Folders of the run that an audit reads, besides the files of the run folder itself.
READ_FOLDERS = ("", "rollouts", "tokens")


def state_of_files(run_folder: Path) -> list[list[int | str]]:
    """(name, files, bytes, newest change in ns) of all that an audit reads."""
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


def check_links(run_folder: Path, roots: Sequence[Path]) -> None:
    """Refuse a run with a link out of the served folders: the audit quotes what it reads."""
    for name in READ_FOLDERS:
        folder = run_folder / name
        if not folder.is_dir():
            continue
        with os.scandir(folder) as entries:
            links = [entry.name for entry in entries if entry.is_symlink()]
        for link in links:
            if not is_inside(folder / link, roots):
                place = f"{name}/{link}".lstrip("/")
                raise PoiseError(f"{place} is a link that leads out of the served folders")
