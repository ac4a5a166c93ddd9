"""Weights & Biases: each run folder is one W&B run, whose id is in RUN/wandb/id.json.

Each row is one history step, plotted over `iteration`. Rows arrive in the same order every time, so
if W&B already has n steps of a run, the first n rows are not sent again. So an iteration that is
trained a second time, after a resume from an earlier checkpoint, keeps its first numbers in W&B.
Offline n is unknown: each start leaves a complete folder, and the last is the one to `wandb sync`.

Project, name, entity, mode: W&B's own environment variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from wandb import init

from counterpoise.files import folder_lock
from counterpoise.run.trackers.tracker import (
    PROJECT,
    MetricRow,
    load_run_id,
    prepare_tracker_home,
)


class WandB:
    def __init__(self, run_folder: Path, out: Path | None, run_options: Mapping[str, Any]) -> None:
        home = prepare_tracker_home(run_folder, out)
        # W&B itself puts its files into a folder `wandb` inside the `dir` it is given.
        self.folder = home / "wandb"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = ExitStack()
        self.lock.enter_context(folder_lock(self.folder))
        self.run = init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=os.environ.get("WANDB_NAME", run_folder.resolve().name),
            id=load_run_id(self.folder),
            resume="allow",
            dir=str(home),
            config=dict(run_options),
            # loop.iterations grows when a run is extended.
            allow_val_change=True,
        )
        self.run.define_metric("iteration", hidden=True)
        self.run.define_metric("*", step_metric="iteration")
        self.rows_already_sent = self.run.starting_step

    def log(self, row: MetricRow) -> None:
        if self.rows_already_sent:
            self.rows_already_sent -= 1
        else:
            self.run.log({**row.values, "iteration": row.iteration, "_timestamp": row.time})

    def close(self, *, failed: bool) -> None:
        with self.lock:
            self.run.finish(exit_code=int(failed))
