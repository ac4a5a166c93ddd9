"""Files and folders that are complete or absent: written under another name, then renamed.
Lines that are there or not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file or a folder to the path that is given; it becomes `path` when the block ends
    without a fault, and leaves nothing behind otherwise. A file never takes a folder's place."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        if temporary.is_dir() and path.is_dir():  # a folder cannot be renamed over a full one
            shutil.rmtree(path)
        temporary.replace(path)
    finally:
        remove(temporary)


def append_line(path: Path, line: str) -> None:
    """A whole line or none: what a full disk cut short is taken back."""
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        left = memoryview(f"{line}\n".encode())
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            file.truncate(before)
            raise


def whole_lines(path: Path) -> Iterator[str]:
    """Every line but a last one that a crash cut off; none where there is no file."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield line


def remove(path: Path) -> None:
    """A file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
