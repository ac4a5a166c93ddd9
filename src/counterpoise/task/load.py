"""Load the configured task, and pass it the options that it takes."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import asdict

from counterpoise.config import RunConfig, SampleConfig, TaskConfig
from counterpoise.errors import PoiseError
from counterpoise.plugins import is_plugin
from counterpoise.task.columns import PARAMETER_REMEDY, FieldOptions
from counterpoise.task.task_prompts import TaskPrompts
from counterpoise.types import ALL_COLUMNS
from counterpoise.variants import TASKS
from counterpoise.verify.check_problems import check_problems
from counterpoise.verify.extra_rewards import check_references, config_needs_answers, reward_columns

FILE_TASKS = ("files", "jsonl")  # read from files on this machine, without a download
# Tasks whose problems are generated when a run starts, and what a model card calls these problems.
GENERATED_TASKS = {
    "word_problems": "arithmetic stories",
    "code_problems": "programming problems",
    "role_play": "questions to characters",
    "reasoning_gym": "puzzles",
    "textarena": "text games",
}


def load_run_task(config: RunConfig) -> TaskPrompts:
    """The prompts of a run, checked against what its rewards need: columns and answers."""
    # A built-in environment compares answers too, whatever the reward does.
    environment = config.task.environment
    compares_answers = environment != "none" and not is_plugin(environment)
    answers_required = config_needs_answers(config.verify) or compares_answers
    columns = dict.fromkeys([*reward_columns(config.verify), *config.kl_columns])
    task = load_task(config.task, tuple(columns), answers_required=answers_required)
    check_references(config.verify, task.train)
    check_problems(config.verify.name, [*task.train, *task.heldout])
    return task


def load_task(
    config: TaskConfig, needed_columns: Sequence[str] = (), *, answers_required: bool = True
) -> TaskPrompts:
    """Call the task's `load` function with the options that match its parameters.

    A task that reads a table takes `fields`: which columns hold what, which ones a reward function
    needs, and whether an answer is required. A generator of problems that have columns takes only
    `needed_columns`.
    """
    load = TASKS.load(config.name)
    parameters = inspect.signature(load).parameters
    column_names = [name for name in needed_columns if name != ALL_COLUMNS]
    if column_names and not {"needed_columns", "fields"} & parameters.keys():
        raise PoiseError(
            f"task.name={config.name}: its problems have no columns, "
            f"{PARAMETER_REMEDY.format(name=column_names[0])}"
        )
    fields = FieldOptions(
        config.problem_field,
        config.answer_field,
        config.id_field,
        config.solution_field,
        config.generic_field,
        needed_columns=tuple(needed_columns),
        answers_required=answers_required,
    )
    options = {**asdict(config), "fields": fields, "needed_columns": needed_columns}
    task: TaskPrompts = load(
        **{name: value for name, value in options.items() if name in parameters}
    )
    return task


def check_enough_prompts(available: int, needed: int) -> None:
    """Raise an error if there are too few training prompts for one iteration."""
    if available < needed:
        raise PoiseError(
            f"{available} training prompts cannot fill an iteration of {needed}: "
            "lower sample.prompts"
        )


def check_prompts_left(num_left: int, num_too_long: int, sample: SampleConfig) -> None:
    """Raise an error if too few training prompts are short enough for one iteration."""
    if num_left < sample.prompts:
        raise PoiseError(
            f"{num_too_long} prompts are longer than sample.max_prompt_tokens="
            f"{sample.max_prompt_tokens}, and {num_left} are left, too few for an iteration "
            f"of {sample.prompts}: raise sample.max_prompt_tokens or lower sample.prompts"
        )
