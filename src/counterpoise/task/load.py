"""Load the configured task, and pass it the options that it takes."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import asdict

from counterpoise.config import RunConfig, TaskConfig
from counterpoise.errors import PoiseError
from counterpoise.task.jsonl import FieldNames
from counterpoise.task.prompts import Task
from counterpoise.types import ALL_COLUMNS
from counterpoise.variants import TASKS
from counterpoise.verify.extra_rewards import reward_columns


def load_problems(config: RunConfig) -> Task:
    """The task of a run, with the columns that its reward functions need."""
    return load_task(config.task, reward_columns(config.verify))


def load_task(config: TaskConfig, keep: Sequence[str] = ()) -> Task:
    """Call the task's `load` function with the options that match its parameters.

    A task that reads a table takes `fields`: which columns hold what, and which further ones a
    reward function needs. A generator of problems takes only the latter, `keep`.
    """
    load = TASKS.load(config.name)
    parameters = inspect.signature(load).parameters
    needed_columns = [name for name in keep if name != ALL_COLUMNS]
    if needed_columns and not {"keep", "fields"} & parameters.keys():
        raise PoiseError(
            f"task.name={config.name}: its problems have no columns, and a reward function needs "
            f"'{needed_columns[0]}': its parameters may be responses, answers and prompts"
        )
    fields = FieldNames(
        config.problem_field,
        config.answer_field,
        config.id_field,
        config.solution_field,
        config.generic_field,
        keep=tuple(keep),
    )
    options = {**asdict(config), "fields": fields, "keep": keep}
    task: Task = load(**{name: value for name, value in options.items() if name in parameters})
    return task


def check_enough_prompts(available: int, needed: int) -> None:
    """Raise an error if there are too few training prompts for one iteration."""
    if available < needed:
        raise PoiseError(
            f"{available} training prompts cannot fill an iteration of {needed}: "
            "lower sample.prompts"
        )
