"""A write that fails, most often on a full disk, becomes one line: what, why, how to go on.

Nothing is left half-written (`atomic.py`), and a checkpoint is removed only after its successor is
whole, so the run goes on from its last one once there is room again.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from counterpoise.errors import PoiseError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
NUMBER = re.compile(r"os error (\d+)|code: (\d+)")  # how safetensors tells of the system's faults


@contextmanager
def writing(path: Path, run: Path) -> Iterator[None]:
    """Around whatever writes `path`, a part of the run in the folder `run`."""
    try:
        yield
    except (OSError, SafetensorError) as fault:
        number = error_number(fault)
        if number is None:
            raise
        remedy = "free some space" if number in FULL else "mend that"
        raise PoiseError(
            f"{path} could not be written: {os.strerror(number)}. What was written before it is "
            f"whole: {remedy}, then go on with poise train --resume --out {run}"
        ) from fault


def error_number(fault: Exception) -> int | None:
    """The system's number of a fault; None when it is not the system's."""
    if isinstance(fault, OSError):
        return fault.errno
    found = NUMBER.search(str(fault))
    return int(found[1] or found[2]) if found else None
