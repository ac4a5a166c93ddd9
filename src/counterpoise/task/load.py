"""The configured task, with only the options it takes."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import asdict

from counterpoise.config import RunConfig, TaskConfig
from counterpoise.errors import PoiseError
from counterpoise.task.prompts import Task
from counterpoise.variants import TASKS
from counterpoise.verify.extra_rewards import columns_of


def load_problems(config: RunConfig) -> Task:
    """The run's task, with the columns that its rewards ask for."""
    return load_task(config.task, columns_of(config.verify))


def load_task(config: TaskConfig, keep: Sequence[str] = ()) -> Task:
    """Every task is a function `load`; options are passed by the names of its parameters. One whose
    problems come from rows takes `keep`: the columns to keep, beside those that are options."""
    load = TASKS.load(config.name)
    wanted = inspect.signature(load).parameters
    if keep and "keep" not in wanted:
        raise PoiseError(
            f"task.name={config.name}: its problems have no columns, and a reward asks for "
            f"'{keep[0]}': its parameters may be responses, answers and prompts"
        )
    given = {**asdict(config), "keep": keep}
    task: Task = load(**{k: v for k, v in given.items() if k in wanted})
    return task


def check_enough_prompts(train: int, wanted: int) -> None:
    """Every iteration asks `wanted` different problems."""
    if train < wanted:
        raise PoiseError(
            f"{train} training prompts cannot fill an iteration of {wanted}: lower sample.prompts"
        )
