"""Start the run folder of another trainer's run that is recorded while it trains.

Such a folder has an imported.json in place of config.toml, because the options are the trainer's:
it names the trainer, and the options that pages show.

A trainer may save a checkpoint in the middle of an iteration. The optimizer steps of the iteration
that the checkpoint's weights already include are then recorded in unfinished/step_NNNNN/, which has
the files of a run folder; NNNNN counts optimizer steps. A run that resumes from the checkpoint
continues that record.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.files import cannot_write, find_leftovers, remove_leftovers
from counterpoise.store.folder import IMPORTED, RunFolder, is_imported
from counterpoise.store.schema import LOGS, STEP_FILES

UNFINISHED = "unfinished"


def start_folder(
    folder: RunFolder,
    description: dict[str, Any],
    finished_iterations: int | None,
    resume_hint: str,
) -> None:
    """Make the folder; of a resumed run, remove what was recorded after `finished_iterations`.

    `description` is the content of imported.json; `finished_iterations` is None for a new run.
    """
    path = folder.path
    if finished_iterations is None or not is_imported(path):
        check_folder_free(path, resume_hint)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise cannot_write(f"run_folder={path}", fault) from fault
    if finished_iterations is not None:
        folder.rewind(finished_iterations)
    else:
        remove_leftovers(path, IMPORTED)
    with folder.atomic_write(IMPORTED) as temporary:
        temporary.write_text(json.dumps(description, indent=1), encoding="utf-8")


def unfinished_folder(folder: RunFolder, steps: int) -> RunFolder:
    """Where the iteration that is open after `steps` optimizer steps is written."""
    return RunFolder(folder.path / UNFINISHED / f"step_{steps:05d}")


def unfinished_iteration(folder: RunFolder, steps: int) -> int | None:
    """The number of the iteration that was open after `steps` optimizer steps, if any was."""
    records = unfinished_folder(folder, steps).read("metrics")
    return int(records[0]["iteration"]) if records else None


def restore_unfinished(folder: RunFolder, steps: int) -> None:
    """Add what was written of the iteration that was open after `steps` optimizer steps."""
    iteration_folder = unfinished_folder(folder, steps)
    for kind in STEP_FILES:
        for file in iteration_folder.step_files(kind).values():
            with folder.atomic_write(f"{kind}/{file.name}", durable=False) as temporary:
                shutil.copyfile(file, temporary)
    for log in LOGS:
        for record in iteration_folder.read(log):
            folder.append(log, {k: v for k, v in record.items() if k != "schema"})
    folder.sync()


def remove_unfinished(folder: RunFolder, keep: Collection[int]) -> None:
    """Remove the folders of unfinished iterations, except those after the step counts in `keep`."""
    for path in (folder.path / UNFINISHED).glob("step_*"):
        number = path.name.removeprefix("step_")
        if number.isdecimal() and int(number) not in keep:
            shutil.rmtree(path, ignore_errors=True)


def check_folder_free(path: Path, resume_hint: str) -> None:
    """Refuse a folder that holds anything."""
    try:
        # A process that was killed at its start leaves only its unfinished imported.json.
        leftovers = set(find_leftovers(path, IMPORTED))
        is_free = not path.exists() or (path.is_dir() and not set(path.iterdir()) - leftovers)
    except OSError as fault:
        raise PoiseError(f"run_folder={path} cannot be used: {fault.strerror}") from fault
    if not is_free:
        raise PoiseError(
            f"run_folder={path} is not empty: choose another or remove it; {resume_hint}"
        )
