"""What a run is doing, told from its files and without touching its lock.

    finished    finished.json names the planned iterations; or a run of another trainer, imported
                or recorded live, whose logs have not changed for QUIET_SECONDS
    training    a process holds the folder's lock; or a run of another trainer, which takes no lock,
                whose logs changed more recently than that
    stopped     no process; the newest checkpoint is of the last iteration: it was told to stop
    failed      no process; iterations after the newest checkpoint are lost: a crash, or a kill
    torn        config.toml or a log cannot be read

The lock is looked up in /proc/locks. Trying to take it, however briefly, could make a run that
starts at that moment stop with "being written by another process". Where the system has no such
list, any run whose logs changed within QUIET_SECONDS counts as training.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from counterpoise.store.finished import FINISHED_FILE
from counterpoise.store.folder import checkpoint_iterations, is_imported

LOCK_LIST = Path("/proc/locks")
QUIET_SECONDS = 60.0  # where no lock tells: logs untouched for this long mean that nobody trains


def locked_inodes() -> set[tuple[int, int, int]] | None:
    """(device major, minor, inode) of every file lock; None where the system has no list."""
    try:
        lines = LOCK_LIST.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    inodes = set()
    for line in lines:
        words = line.split()
        if "FLOCK" not in words:
            continue
        for word in words:
            pieces = word.split(":")
            if len(pieces) == 3 and pieces[2].isdigit():
                inodes.add((int(pieces[0], 16), int(pieces[1], 16), int(pieces[2])))
    return inodes


def is_locked(folder: Path, locks: set[tuple[int, int, int]] | None, updated: float) -> bool:
    """Whether a process writes this folder."""
    if locks is None:
        return time.time() - updated < QUIET_SECONDS
    try:
        status = folder.stat()
    except OSError:
        return False
    device = status.st_dev
    return (os.major(device), os.minor(device), status.st_ino) in locks


def run_state(
    folder: Path,
    *,
    last_iteration: int,
    planned_iterations: int | None,
    updated: float,
    is_torn: bool,
    locks: set[tuple[int, int, int]] | None,
) -> str:
    """One of the five states above."""
    if is_locked(folder, locks, updated):
        return "training"
    if is_torn:
        return "torn"
    # Scripts that train with TRL or verl take no lock, and their folder looks like an imported run.
    if is_imported(folder):
        return "training" if time.time() - updated < QUIET_SECONDS else "finished"
    if planned_iterations is not None and finished_iterations(folder) == planned_iterations:
        return "finished"
    newest_checkpoint = max(checkpoint_iterations(folder), default=0)
    return "stopped" if newest_checkpoint >= last_iteration else "failed"


def finished_iterations(folder: Path) -> int | None:
    """What finished.json says; None where it is absent or damaged."""
    try:
        iterations = json.loads((folder / FINISHED_FILE).read_bytes()[:10_000])["iterations"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return iterations if isinstance(iterations, int) else None
