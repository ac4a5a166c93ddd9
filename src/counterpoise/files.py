"""Whole files, whole lines, one writer: how everything is put on the disk."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from counterpoise.errors import PoiseError

# Files and folders that are complete or absent: written under another name, then renamed.
# Lines that are there or not.
#
# Renaming alone survives a killed process, not a power cut: the new name may reach the disk before
# the content does. So the content is flushed to the disk before it is renamed, and then the folder.

# A file system that cannot flush a folder, or a folder that may be written to and not read.
FOLDER_SYNC_UNSUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES}


@contextmanager
def atomic_write(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Write a file or a folder to the path that is given; it becomes `path` when the block ends
    without a fault, and leaves nothing behind otherwise. A file never takes a folder's place.

    Unless it is `durable`, someone else has to flush it: see `RunFolder.sync`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    previous = path.with_name(f".{path.name}.{os.getpid()}.previous.part")
    try:
        yield temporary
        if durable:
            sync_tree(temporary)
        if temporary.is_dir() and path.is_dir():  # a folder cannot be renamed over a full one
            path.rename(previous)
        temporary.replace(path)
        if durable:
            sync_folder(path.parent)
    finally:
        remove_path(temporary)
        if path.exists():
            remove_path(previous)
        elif previous.exists():
            previous.rename(path)


def append_line(path: Path, line: str) -> None:
    """A whole line or none: what a full disk cut short is taken back."""
    with path.open("ab", buffering=0) as file:
        old_size = file.tell()
        remaining = memoryview(f"{line}\n".encode())
        try:
            while remaining:
                remaining = remaining[file.write(remaining) :]
        except OSError:
            file.truncate(old_size)
            raise


def read_complete_lines(path: Path) -> Iterator[str]:
    """Every line but a last one that a crash cut off; none where there is no file."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield line


def remove_path(path: Path) -> None:
    """A file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Files that a killed process was writing for `name`, a glob pattern. Only for a folder that no
    other process writes to.
    """
    for path in find_leftovers(folder, name):
        remove_path(path)


def find_leftovers(folder: Path, name: str = "*") -> list[Path]:
    return list(folder.glob(f".{name}.*.part"))


def make_folder(path: Path) -> None:
    """The folder and those above it, on the disk when this returns."""
    created = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in created:
        sync_folder(folder.parent)


# -- flushing to the disk -----------------------------------------------------------------------


def sync_file(path: Path) -> None:
    """The file's content is on the disk when this returns; its name is, after `sync_folder`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """The names in a folder are on the disk when this returns, where the file system can do it."""
    try:
        sync_file(path)
    except OSError as fault:
        if fault.errno not in FOLDER_SYNC_UNSUPPORTED:
            raise


def sync_tree(path: Path) -> None:
    """A file, or a folder with everything in it."""
    if not path.is_dir():
        sync_file(path)
        return
    for child in path.iterdir():
        sync_tree(child)
    sync_folder(path)


# One process writes a folder at a time: `--resume` of a run that still goes on would cut its logs.
#
# The folder itself is locked (flock). The kernel takes the lock back when its process ends, however
# it ends, so nothing is left to clean up; a file system without locks is written without one.


@contextmanager
def folder_lock(path: Path) -> Iterator[int]:
    """Inside, `path` is written by this process only, and by those that inherit the descriptor."""
    folder = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # no locks here, which is not the user's fault
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PoiseError(
                    f"{path} is being written by another process: wait until it has ended, "
                    "or choose another --out"
                ) from None
        yield folder
    finally:
        os.close(folder)


def check_unlocked(path: Path) -> None:
    """Refuse a run that is going on before anything of it is read or cut."""
    with folder_lock(path):
        pass


# A write that fails, most often on a full disk, becomes one line: what, why, how to go on.
#
# Nothing is left half-written (`files.py`), and a checkpoint is removed only after its successor
# is whole, so the run goes on from its last one once there is room again.

DISK_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
ERROR_NUMBER_PATTERN = re.compile(
    r"os error (\d+)|code: (\d+)"
)  # how safetensors tells of the system's faults


@contextmanager
def explain_write_errors(path: Path, run: Path) -> Iterator[None]:
    """Around whatever writes `path`, a part of the run in the folder `run`."""
    try:
        yield
    except (OSError, SafetensorError) as fault:
        number = error_number(fault)
        if number is None:
            raise
        remedy = "free some space" if number in DISK_FULL_ERRORS else "mend that"
        raise PoiseError(
            f"{path} could not be written: {os.strerror(number)}. What was written before it is "
            f"whole: {remedy}, then go on with poise train --resume --out {run}"
        ) from fault


def error_number(fault: Exception) -> int | None:
    """The system's number of a fault; None when it is not the system's."""
    if isinstance(fault, OSError):
        return fault.errno
    match = ERROR_NUMBER_PATTERN.search(str(fault))
    return int(match[1] or match[2]) if match else None
