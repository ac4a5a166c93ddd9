"""One process writes a folder at a time: `--resume` of a run that still goes on would cut its logs.

The folder itself is locked (flock). The kernel takes the lock back when its process ends, however
it ends, so nothing is left to clean up; a file system without locks is written without one.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from counterpoise.errors import PoiseError


@contextmanager
def alone(path: Path) -> Iterator[int]:
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


def check_alone(path: Path) -> None:
    """Refuse a run that is going on before anything of it is read or cut."""
    with alone(path):
        pass
