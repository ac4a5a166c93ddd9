"""Make the run folders: train the trained ones, copy and change the edited ones.

    OUT/seed_3/NAME/        a run folder
    OUT/seed_3/data/NAME/   its data files, if it has its own
    OUT/seed_3/NAME.recipe  a digest of its options, its data files and the code of its fault

A folder that is complete and has the same recipe is not made again, so an interrupted study
continues; after a change of a cause its run is made anew.
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from counterpoise.config.load import load_config, to_toml
from counterpoise.files import atomic_write, remove_path
from counterpoise.lab.sick_runs import edits, planted_rewards, stale_sampler
from counterpoise.lab.sick_runs.causes import (
    BASE_OPTIONS,
    HEALTHY_RUNS,
    SICK_RUNS,
    EditedRun,
    TrainedRun,
)
from counterpoise.loop import train
from counterpoise.store.finished import FINISHED_FILE

AnyRun = TrainedRun | EditedRun
ALL_RUNS: tuple[AnyRun, ...] = (*HEALTHY_RUNS, *SICK_RUNS)


def plant_run(planted: AnyRun, seed: int, out: Path, say: Callable[[str], None]) -> Path:
    """The folder of a planted run, made unless it is there and was made in the same way."""
    folder = out / f"seed_{seed}" / planted.name
    if isinstance(planted, EditedRun):
        healthy = plant_run(HEALTHY_RUNS[0], seed, out, say)
        recipe = _digest(_recipe_file(healthy).read_bytes(), _source_of(edits))

        def make() -> None:
            with atomic_write(folder) as temporary:
                shutil.copytree(healthy, temporary)
                planted.edit(temporary)
    else:
        data_folder = folder.parent / "data" / planted.name
        data_options = planted.data(data_folder, seed) if planted.data else []
        config = load_config(
            "demo", [*BASE_OPTIONS, f"loop.seed={seed}", *planted.options, *data_options]
        )
        data_files = sorted(data_folder.glob("*")) if planted.data else []
        recipe = _digest(
            to_toml(config).encode(),
            *(file.read_bytes() for file in data_files),
            *(_source_of(module) for module in (planted_rewards, stale_sampler)),
        )

        def make() -> None:
            with stale_sampler.stale_sampling() if planted.stale_sampler else nullcontext():
                train(config, folder)

    recipe_file = _recipe_file(folder)
    is_same = recipe_file.is_file() and recipe_file.read_text(encoding="utf-8") == recipe
    if is_same and (folder / FINISHED_FILE).is_file():
        return folder
    say(f"seed {seed}, {planted.name}: {planted.planted}")
    remove_path(folder)  # what an interrupted study left, or a run of another recipe
    make()
    recipe_file.write_text(recipe, encoding="utf-8")
    return folder


def _recipe_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.recipe")


def _source_of(module: ModuleType) -> bytes:
    return inspect.getsource(module).encode()


def _digest(*contents: bytes) -> str:
    return sha256(b"".join(sha256(content).digest() for content in contents)).hexdigest()
