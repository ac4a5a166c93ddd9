"""The configured task, with only the options it takes."""

from __future__ import annotations

import inspect
from dataclasses import asdict

from counterpoise.config import TaskConfig
from counterpoise.errors import PoiseError
from counterpoise.task import TASKS
from counterpoise.task.prompts import Task


def load_task(config: TaskConfig) -> Task:
    """Every task is a function `load`; options are passed by the names of its parameters."""
    load = TASKS.load(config.name)
    wanted = inspect.signature(load).parameters
    task: Task = load(**{k: v for k, v in asdict(config).items() if k in wanted})
    return task


def check_enough(train: int, wanted: int) -> None:
    """Every iteration asks `wanted` different problems."""
    if train < wanted:
        raise PoiseError(
            f"{train} training prompts cannot fill an iteration of {wanted}: lower sample.prompts"
        )
