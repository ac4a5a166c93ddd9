"""Trackio: each run folder is one run of its project; `trackio show --project counterpoise`.

Trackio has one store for all projects (TRACKIO_DIR, in the cache of Hugging Face by default), so
that runs lie beside each other. A run is known by its name, to which RUN/trackio/id.json adds an
id. Each start removes the run from the store and sends every row again, with the iteration as its
step. Trackio dates rows by their arrival.

On a Space or a server (TRACKIO_SPACE_ID, TRACKIO_SERVER_URL) nothing is removed: each start leaves
a complete run of the same name. Project: TRACKIO_PROJECT.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from trackio import Api, finish, init
from trackio.utils import TRACKIO_DIR

from counterpoise.files import folder_lock
from counterpoise.run.trackers.tracker import (
    PROJECT,
    MetricRow,
    load_run_id,
    prepare_tracker_home,
)

REMOTE_STORES = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")


class Trackio:
    def __init__(self, run_folder: Path, out: Path | None, run_options: Mapping[str, Any]) -> None:
        id_folder = prepare_tracker_home(run_folder, out) / "trackio"
        id_folder.mkdir(parents=True, exist_ok=True)
        self.folder = Path(TRACKIO_DIR)
        self.lock = ExitStack()
        self.lock.enter_context(folder_lock(id_folder))
        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        run_name = f"{run_folder.resolve().name}-{load_run_id(id_folder)}"
        if not any(os.environ.get(variable) for variable in REMOTE_STORES):
            for earlier_run in find_runs(project, run_name):
                earlier_run.delete()
        # Its messages would tear the live display apart.
        with redirect_stdout(StringIO()):
            self.run = init(
                project=project,
                name=run_name,
                config=dict(run_options),
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, row: MetricRow) -> None:
        self.run.log({**row.values, "iteration": row.iteration}, step=row.iteration)

    def close(self, *, failed: bool) -> None:
        with self.lock, redirect_stdout(StringIO()):
            finish()  # unlike run.finish, it leaves nothing to do at exit


def find_runs(project: str, run_name: str) -> list[Any]:
    """The runs of that name in the store on this machine."""
    try:
        return [run for run in Api().runs(project) if run.name == run_name]
    except ValueError:  # there is no such project yet
        return []
