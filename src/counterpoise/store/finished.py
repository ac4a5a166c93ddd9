"""finished.json marks a run that has ended; it is written after everything else.

It holds the number of iterations, so a run that is resumed with more is unfinished again. With
`store.model = false` the checkpoints, the largest files, are removed once the run is finished.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError, first_line
from counterpoise.files import folder_lock, remove_path
from counterpoise.store.folder import CHECKPOINTS, REPLAY, RunFolder, is_run

FINISHED_FILE = "finished.json"


def mark_finished(folder: RunFolder, config: RunConfig) -> None:
    """Write finished.json; remove the checkpoints if the run keeps no model."""
    # finished.json implies that everything else is on disk.
    folder.sync()
    record = {
        "schema": 1,
        "iterations": config.loop.iterations,
        "checksums_from": folder.checksums_from,
    }
    with folder.atomic_write(FINISHED_FILE) as temporary:
        temporary.write_text(json.dumps(record))
    if not config.store.model:
        remove_path(folder.checkpoints)


def is_finished(path: Path, iterations: int) -> bool:
    """Whether the run in `path` ended after exactly `iterations` and wrote all its files."""
    finished_file = path / FINISHED_FILE
    if not finished_file.is_file():
        return False
    try:
        finished_iterations = json.loads(finished_file.read_text(encoding="utf-8"))["iterations"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as fault:
        raise PoiseError(
            f"{finished_file} is damaged ({first_line(fault)}): "
            "remove it to treat the run as unfinished"
        ) from fault
    return bool(finished_iterations == iterations)


def has_ended(path: Path) -> bool:
    """Whether `path` holds a run that made all iterations of its own config.toml."""
    return is_run(path) and is_finished(path, RunFolder(path).read_config().loop.iterations)


def refuse_finished(path: Path, config: RunConfig) -> None:
    """Refuse to resume a finished run that kept no model: it would restart and lose its numbers."""
    if (path / REPLAY).is_file():
        raise PoiseError(
            f"{path} was written by poise replay and has nothing to train: the same poise replay "
            "command continues it"
        )
    if not config.store.model and (path / FINISHED_FILE).is_file():
        _remove_leftover_checkpoints(path)
        raise PoiseError(
            f"{path} has ended and kept no model (store.model=false): there is nothing to resume"
        )


def _remove_leftover_checkpoints(path: Path) -> None:
    """Remove checkpoints that a killed `mark_finished` left, unless the folder is in use."""
    with suppress(PoiseError), folder_lock(path):
        remove_path(path / CHECKPOINTS)
