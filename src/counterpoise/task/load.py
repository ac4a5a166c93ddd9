"""Load the configured task, and pass it the options that it takes."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import asdict

from counterpoise.config import RunConfig, TaskConfig
from counterpoise.errors import PoiseError
from counterpoise.plugins import is_plugin
from counterpoise.task.columns import FieldNames
from counterpoise.task.prompts import Task
from counterpoise.types import ALL_COLUMNS
from counterpoise.variants import TASKS
from counterpoise.verify.code.verifier import check_tests
from counterpoise.verify.extra_rewards import check_references, needs_answers, reward_columns

FILE_TASKS = ("files", "jsonl")  # read from files on this machine, without a download


def load_problems(config: RunConfig) -> Task:
    """The task of a run, with the columns that its reward functions need."""
    # A built-in environment compares answers too, whatever the reward does.
    environment = config.task.environment
    compares_answers = environment != "none" and not is_plugin(environment)
    answers_required = needs_answers(config.verify) or compares_answers
    columns = dict.fromkeys([*reward_columns(config.verify), *config.kl_columns])
    task = load_task(config.task, tuple(columns), answers_required=answers_required)
    check_references(config.verify, task.train)
    if config.verify.name == "code":
        check_tests([*task.train, *task.heldout])
    return task


def load_task(
    config: TaskConfig, keep: Sequence[str] = (), *, answers_required: bool = True
) -> Task:
    """Call the task's `load` function with the options that match its parameters.

    A task that reads a table takes `fields`: which columns hold what, which ones a reward function
    needs, and whether an answer is required. A generator of problems takes only `keep`, the columns
    that a reward function needs.
    """
    load = TASKS.load(config.name)
    parameters = inspect.signature(load).parameters
    needed_columns = [name for name in keep if name != ALL_COLUMNS]
    if needed_columns and not {"keep", "fields"} & parameters.keys():
        raise PoiseError(
            f"task.name={config.name}: its problems have no columns, and a reward function or "
            f"update.kl_settings needs '{needed_columns[0]}': the parameters of a reward function "
            "may be responses, answers and prompts"
        )
    fields = FieldNames(
        config.problem_field,
        config.answer_field,
        config.id_field,
        config.solution_field,
        config.generic_field,
        keep=tuple(keep),
        answers_required=answers_required,
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
