"""What a command that starts runs must not do: start them twice."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from counterpoise.errors import PoiseError


@contextmanager
def alone(folder: Path) -> Iterator[int]:
    """Two commands must not train the same folder. The runs hold the lock too, so that those of a
    command that was killed are not started a second time beside themselves."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            raise PoiseError(
                f"runs in {folder} are being trained: wait for them to end, or choose another --out"
            ) from fault
        yield file.fileno()
