"""Start the run folder of another trainer's run that is recorded while it trains.

Such a folder has an imported.json in place of config.toml, because the options are the trainer's:
it names the trainer, and the options that pages show.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.files import cannot_write, find_leftovers, remove_leftovers
from counterpoise.store.folder import IMPORTED, RunFolder, is_imported


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


def check_folder_free(path: Path, resume_hint: str) -> None:
    """Refuse a folder that holds anything."""
    try:
        # A process that was killed at its start leaves only its unfinished imported.json.
        unfinished = set(find_leftovers(path, IMPORTED))
        is_free = not path.exists() or (path.is_dir() and not set(path.iterdir()) - unfinished)
    except OSError as fault:
        raise PoiseError(f"run_folder={path} cannot be used: {fault.strerror}") from fault
    if not is_free:
        raise PoiseError(
            f"run_folder={path} is not empty: choose another or remove it; {resume_hint}"
        )
