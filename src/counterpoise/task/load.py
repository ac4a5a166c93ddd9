"""The configured task, with only the options it takes."""

from __future__ import annotations

import inspect
from dataclasses import asdict

from counterpoise.config import TaskConfig
from counterpoise.task import TASKS
from counterpoise.task.prompts import Task


def load_task(config: TaskConfig) -> Task:
    """Every task is a function `load`; options are passed by the names of its parameters."""
    load = TASKS.load(config.name)
    wanted = inspect.signature(load).parameters
    task: Task = load(**{k: v for k, v in asdict(config).items() if k in wanted})
    return task
