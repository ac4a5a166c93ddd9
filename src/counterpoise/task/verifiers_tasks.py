"""The `verifiers` task: prompts of a taskset of the package `verifiers`.

    task.name = "verifiers", task.path = "TASKSET", verify.name = "verifiers"

TASKSET is the name of an installed package or module that exports a `Taskset`. The first
`task.size` tasks are read; `task.heldout` of them are held out by the hash of their ids. A system
prompt and several messages are kept. The task's own rewards score the responses
(verify/verifiers_tasks.py); any other reward gets the fields of a task's data as columns, None
for those that a task leaves empty.
"""

from __future__ import annotations

from typing import Any

from counterpoise.errors import PoiseError, first_line
from counterpoise.task.chat import conversation_text, parse_messages
from counterpoise.task.columns import (
    DEFAULT_FIELDS,
    FieldOptions,
    answer_text,
    check_needed_columns,
    unwrap_single_answer,
)
from counterpoise.task.read_files import look_up
from counterpoise.task.split_heldout import split_prompts
from counterpoise.task.task_prompts import TaskPrompts
from counterpoise.types import Prompt
from counterpoise.verify.verifiers_tasks import (
    DATA_COLUMN,
    TASKSET_COLUMN,
    check_text_only,
    load_taskset,
)


def load(
    path: str, *, size: int = 4096, heldout: int = 0, fields: FieldOptions = DEFAULT_FIELDS
) -> TaskPrompts:
    """The first `size` tasks of the taskset, of which `heldout` are held out."""
    if not path:
        raise PoiseError("the verifiers task needs the name of a taskset: set task.path")
    taskset = load_taskset(path)
    try:
        tasks = list(taskset.take(size))
    except Exception as fault:  # the package's own code may raise anything
        raise PoiseError(f"task.path={path}: its tasks cannot be read: {first_line(fault)}") from (
            fault
        )
    if not tasks:
        raise PoiseError(f"task.path={path}: the taskset is empty")
    check_text_only(tasks[0], path)
    prompts = [_to_prompt(task, path, fields) for task in tasks]
    check_needed_columns(fields.needed_columns, prompts[0].columns, f"task.path={path}")
    split = split_prompts(prompts, heldout, path)
    return TaskPrompts(path, split.train, split.heldout, repeats=split.repeats)


def _to_prompt(task: Any, path: str, fields: FieldOptions) -> Prompt:
    data = task.data.model_dump(mode="json")
    where, prompt = f"task {task.data.idx} of {path}", task.data.prompt
    raw_messages = []
    if task.data.system_prompt:
        raw_messages.append({"role": "system", "content": task.data.system_prompt})
    if isinstance(prompt, str):
        raw_messages.append({"role": "user", "content": prompt})
    else:
        raw_messages += [message.model_dump(mode="json", exclude_none=True) for message in prompt]
    messages = parse_messages(raw_messages, where, "prompt")
    value = unwrap_single_answer(look_up(data, fields.answer))
    answer = answer_text(value)
    if fields.answers_required and (not answer or isinstance(value, bool | list | dict)):
        raise PoiseError(
            f"{where} has no text or number in a field '{fields.answer}': set "
            "verify.name=verifiers, which scores by the task's own rewards, or task.answer_field"
        )
    # For scoring, the package validates this column as a task's data. A field whose default is None
    # may be declared with a type that rejects None, so fields that are None are left out.
    data_without_none = task.data.model_dump(mode="json", exclude_none=True)
    columns = {**data, TASKSET_COLUMN: path, DATA_COLUMN: data_without_none}
    return Prompt(
        task.data.id or f"{path}/{task.data.idx}",
        conversation_text(messages),
        answer,
        columns=columns,
        messages=messages,
    )
