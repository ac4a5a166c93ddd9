"""The mark of a run that has ended: finished.json, written after everything else.

It says at which iteration, so a run that is resumed with more iterations is unfinished again. With
`store.model = false` the run's checkpoints go when it is written: they would be all that is large.
"""

from __future__ import annotations

import json
from pathlib import Path

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError, first_line
from counterpoise.files import atomic_write, remove_path
from counterpoise.store.folder import CHECKPOINTS, RunFolder

FINISHED_FILE = "finished.json"


def mark_finished(folder: RunFolder, config: RunConfig) -> None:
    folder.sync()  # the mark promises everything that was written before it
    with atomic_write(folder.path / FINISHED_FILE) as temporary:
        temporary.write_text(json.dumps({"schema": 1, "iterations": config.loop.iterations}))
    if not config.store.model:
        remove_path(folder.checkpoints)


def is_finished(path: Path, iterations: int) -> bool:
    """Whether the run in `path` reached `iterations` and wrote all it was to write."""
    mark = path / FINISHED_FILE
    if not mark.is_file():
        return False
    try:
        finished_iterations = json.loads(mark.read_text(encoding="utf-8"))["iterations"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as fault:
        raise PoiseError(
            f"{mark} is damaged ({first_line(fault)}): remove it, and the run is unfinished"
        ) from fault
    return bool(finished_iterations == iterations)


def check_resumable(path: Path, config: RunConfig) -> None:
    """A run that kept no model cannot go on: starting it again would only wipe its numbers.

    Checkpoints that `finish` could not remove, because it was killed, go now.
    """
    if not config.store.model and (path / FINISHED_FILE).is_file():
        remove_path(path / CHECKPOINTS)
        raise PoiseError(
            f"{path} has ended and kept no model (store.model=false): there is nothing to resume"
        )
