"""Make the run folders: train the trained ones, copy and change the edited ones.

    OUT/seed_3/NAME/        a run folder
    OUT/seed_3/data/NAME/   its data files, if it has its own

A folder that is already complete is not made again, so an interrupted study continues.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from counterpoise.config.load import load_config
from counterpoise.files import atomic_write, remove_path
from counterpoise.lab.sick_runs.causes import (
    BASE_OPTIONS,
    HEALTHY_RUNS,
    SICK_RUNS,
    EditedRun,
    TrainedRun,
)
from counterpoise.lab.sick_runs.stale_sampler import stale_sampling
from counterpoise.loop import train
from counterpoise.store.finished import FINISHED_FILE

AnyRun = TrainedRun | EditedRun
ALL_RUNS: tuple[AnyRun, ...] = (*HEALTHY_RUNS, *SICK_RUNS)
EDITED_FROM = HEALTHY_RUNS[0].name


def plant_run(planted: AnyRun, seed: int, out: Path, say: Callable[[str], None]) -> Path:
    """The folder of a planted run, made if it is not there."""
    folder = out / f"seed_{seed}" / planted.name
    if (folder / FINISHED_FILE).is_file():
        return folder
    say(f"seed {seed}, {planted.name}: {planted.planted}")
    if isinstance(planted, EditedRun):
        healthy = plant_run(HEALTHY_RUNS[0], seed, out, say)
        with atomic_write(folder) as temporary:
            shutil.copytree(healthy, temporary)
            planted.edit(temporary)
        return folder
    remove_path(folder)  # what an interrupted study left
    data_folder = folder.parent / "data" / planted.name
    data_options = planted.data(data_folder, seed) if planted.data else []
    config = load_config(
        "demo", [*BASE_OPTIONS, f"loop.seed={seed}", *planted.options, *data_options]
    )
    with stale_sampling() if planted.stale_sampler else nullcontext():
        train(config, folder)
    return folder
