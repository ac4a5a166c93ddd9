"""The `verifiers` task: prompts of a taskset of the package `verifiers`.

    task.name = "verifiers", task.path = "TASKSET", verify.name = "verifiers"

TASKSET is the name of an installed package or module that exports a `Taskset`. The first
`task.size` tasks are read; `task.heldout` of them are held out by the hash of their ids. A system
prompt and several messages are kept. The task's own rewards score the responses
(verify/verifiers_tasks.py); any other reward gets the fields of a task's data as columns.
"""

from __future__ import annotations

from typing import Any

from counterpoise.errors import PoiseError, first_line
from counterpoise.task.chat import conversation_text, parse_messages
from counterpoise.task.columns import FieldNames
from counterpoise.task.prompts import Task
from counterpoise.task.split_heldout import hold_out
from counterpoise.types import Prompt
from counterpoise.verify.verifiers_tasks import (
    DATA_COLUMN,
    TASKSET_COLUMN,
    check_text_only,
    load_taskset,
)

DEFAULT_FIELDS = FieldNames()


def load(
    path: str, *, size: int = 4096, heldout: int = 0, fields: FieldNames = DEFAULT_FIELDS
) -> Task:
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
    if not heldout:
        return Task(path, prompts, [])
    train, heldout_prompts = hold_out(prompts, heldout, path)
    return Task(path, train, heldout_prompts)


def _to_prompt(task: Any, path: str, fields: FieldNames) -> Prompt:
    data = task.data.model_dump(mode="json", exclude_none=True)
    where, prompt = f"task {task.data.idx} of {path}", task.data.prompt
    records = [{"role": "system", "content": task.data.system_prompt}] * bool(
        task.data.system_prompt
    )
    records += (
        [{"role": "user", "content": prompt}]
        if isinstance(prompt, str)
        else [message.model_dump(mode="json", exclude_none=True) for message in prompt]
    )
    messages = parse_messages(records, where, "prompt")
    answer = data.get(fields.answer, "")
    if fields.answers_required and not isinstance(answer, str | int | float):
        answer = ""
    if fields.answers_required and not str(answer).strip():
        raise PoiseError(
            f"{where} has no field '{fields.answer}': set verify.name=verifiers, which scores by "
            "the task's own rewards, or task.answer_field"
        )
    columns = {**data, TASKSET_COLUMN: path, DATA_COLUMN: data}
    return Prompt(
        task.data.id or f"{path}/{task.data.idx}",
        conversation_text(messages),
        str(answer).strip(),
        columns=columns,
        messages=messages,
    )
