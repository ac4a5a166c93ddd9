"""Writing to disk: atomic files, complete lines, one writer per folder, clear disk errors."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from counterpoise.errors import PoiseError

# Files and folders are complete or absent: they are written under a temporary name, then renamed.
# Lines of a log are complete or absent as well.
#
# Renaming alone survives a killed process, not a power cut: the new name may reach the disk before
# the content does. So the content is flushed to the disk before it is renamed, and then the folder.

# Errors of file systems that cannot flush a folder, and of folders that cannot be read.
FOLDER_SYNC_UNSUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES}


@contextmanager
def atomic_write(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write a file or folder to, and rename it to `path` at the end.

    If the block raises, nothing is left behind and the old content of `path` stays. A file never
    replaces a folder, and nothing replaces a device such as /dev/null. Unless `durable`, the caller
    has to flush it later: see `RunFolder.sync`.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise FileExistsError(errno.EEXIST, "it is a device or a pipe, not a file", str(path))
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
    """Append a complete line or nothing: a line that a full disk cut short is removed again."""
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
    """Every line except a last one cut off by a crash; nothing if the file does not exist."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield line


def remove_path(path: Path) -> None:
    """Remove a file or a folder if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Remove temporary files that a killed process left for `name`, a glob pattern.

    Only for a folder that no other process is writing to.
    """
    for path in find_leftovers(folder, name):
        remove_path(path)


def find_leftovers(folder: Path, name: str = "*") -> list[Path]:
    """Temporary files and folders of `atomic_write`."""
    return list(folder.glob(f".{name}.*.part"))


def make_folder(path: Path) -> None:
    """Create the folder and its parents and flush their names to disk."""
    created = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in created:
        sync_folder(folder.parent)


# -- flushing to the disk -----------------------------------------------------------------------


def sync_file(path: Path) -> None:
    """Flush the file's content to disk; `sync_folder` flushes its name."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to disk, where the file system supports it."""
    try:
        sync_file(path)
    except OSError as fault:
        if fault.errno not in FOLDER_SYNC_UNSUPPORTED:
            raise


def sync_tree(path: Path) -> None:
    """Flush a file, or a folder with everything in it."""
    if not path.is_dir():
        sync_file(path)
        return
    for child in path.iterdir():
        sync_tree(child)
    sync_folder(path)


# One process writes a folder at a time: resuming a run that is still training would cut its logs.
#
# The folder itself is locked (flock). The kernel releases the lock when the process ends, however
# it ends, so nothing is left to clean up. On a file system without locks there is no protection.


@contextmanager
def folder_lock(path: Path) -> Iterator[int]:
    """Hold the lock of the folder `path`, for this process and children that inherit it."""
    folder = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # this file system has no locks
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PoiseError(
                    f"{path} is being written by another process: wait until it ends, "
                    "or choose another --out"
                ) from None
        yield folder
    finally:
        os.close(folder)


def check_unlocked(path: Path) -> None:
    """Refuse a folder that another process is writing to."""
    with folder_lock(path):
        pass


# A failed write, most often on a full disk, becomes one line: what failed, why, how to continue.
#
# Nothing is left half-written, and a checkpoint is removed only after its successor is complete, so
# the run can resume from its last checkpoint once there is space again.

DISK_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
ERROR_NUMBER_PATTERN = re.compile(
    r"os error (\d+)|code: (\d+)"
)  # how safetensors and tokenizers report system errors


def cannot_write(path: object, fault: OSError, remedy: str = "") -> PoiseError:
    """The error for an output path that cannot be written."""
    return PoiseError(f"{path} cannot be written: {fault.strerror}{remedy}")


@contextmanager
def explain_write_errors(path: Path, run: Path, command: str = "") -> Iterator[None]:
    """Turn system errors while writing `path` in the run folder `run` into one line.

    `command` says how to go on afterwards; by default the run is resumed.
    """
    try:
        yield
    except Exception as fault:
        # tokenizers raises its disk errors as plain exceptions.
        is_of_disk = isinstance(fault, OSError | SafetensorError) or type(fault) is Exception
        number = error_number(fault) if is_of_disk else None
        if number is None:
            raise
        remedy = "free some space" if number in DISK_FULL_ERRORS else "fix that"
        resume_command = shlex.join(["poise", "train", "--resume", "--out", str(run)])
        raise PoiseError(
            f"{path} could not be written: {os.strerror(number)}. Everything written before is "
            f"intact: {remedy}, then {command or f'continue with {resume_command}'}"
        ) from fault


def error_number(fault: Exception) -> int | None:
    """The errno of an exception; None if it is not a system error."""
    if isinstance(fault, OSError):
        return fault.errno
    match = ERROR_NUMBER_PATTERN.search(str(fault))
    return int(match[1] or match[2]) if match else None
