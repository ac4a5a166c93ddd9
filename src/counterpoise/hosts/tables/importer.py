"""Import a table of rollouts that any trainer, or any script, has logged.

    {"step": 3, "prompt": "How many?", "response": "12", "reward": 1.0}

Each row is a rollout, or a prompt with a list of responses and lists of their rewards. Columns are
recognised by name (columns.py) or named by --columns; rows.py says which files are read. Rows of a
step with the same group, else with the same prompt id, else with equal prompts, are a group.

A step's rows may lie apart and in several files: all rows are written to scratch files, one for
each step, and read again step by step. Without a column of steps a file is a step, whose number is
the one in the file's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import (
    ImportContext,
    ImportedRollout,
    ImportedStep,
    RolloutSource,
)
from counterpoise.hosts.importing.json_lines import check_step, read_objects
from counterpoise.hosts.importing.text_rollouts import name_prompt, text_rollout
from counterpoise.hosts.importing.token_spans import is_token_list, select_numbers
from counterpoise.hosts.tables.columns import (
    PER_RESPONSE_COLUMNS,
    TableColumns,
    has_rollouts,
    is_number,
    recognise_columns,
)
from counterpoise.hosts.tables.conversations import (
    SplitConversation,
    split_conversation,
    usual_messages,
)
from counterpoise.hosts.tables.rows import is_table_file, peek_row, read_rows
from counterpoise.task.chat import is_conversation
from counterpoise.task.read_files import look_up

CUT_OFF_REASONS = ("length", "max_tokens", "max_length", "truncated")
NUMBER_IN_NAME = re.compile(r"([0-9]+)(?!.*[0-9])")  # the last one
TOKENS_REMEDY = (
    "name the tokenizer of the model that was trained, as --tokenizer Qwen/Qwen3-0.6B, or a column "
    "of counts, as --columns num_tokens=NAME"
)
WITHOUT_REWARD = "left out because they have no reward: {}"


def find_files(path: Path) -> list[Path]:
    """The file, or the files of a folder, whose columns are recognised."""
    return [file for file in find_tables(path) if has_rollouts(peek_row(file))]


def find_tables(path: Path) -> list[Path]:
    """The file, or all tables of a folder, whatever their columns are called.

    Files of JSON in a folder are left out: they mostly are options, or a tokenizer.
    """
    if path.is_file():
        return [path] if is_table_file(path) else []
    files = path.iterdir() if path.is_dir() else ()
    return sorted(
        (file for file in files if is_table_file(file) and file.suffix.lower() != ".json"),
        key=lambda file: (_number_in_name(file) or 0, file.name),
    )


def _number_in_name(file: Path) -> int | None:
    """12 of rollouts_12.jsonl; None without a number."""
    match = NUMBER_IN_NAME.search(file.name.partition(".")[0])
    return int(match[1]) if match else None


def read_steps(files: Sequence[Path], context: ImportContext) -> Iterator[ImportedStep]:
    """The rollouts of every step, in the order of the steps."""
    columns = _columns_of_first_row(files, context)
    context.notes.add(f"columns: {columns.describe()}")
    if "step" not in columns.names:
        context.notes.add(
            "the rows name no step, so "
            + ("each file is one" if len(files) > 1 else "all of them are one")
            + " (--columns step=NAME names its column)"
        )
    if not {"group", "prompt_id"} & set(columns.names):
        context.notes.add("groups are rows of a step with equal prompts")
    for number, file in sorted(_sort_by_step(files, columns, context).items()):
        rollouts: list[ImportedRollout] = []
        for _, record in read_objects(file):
            row_rollouts = _parse_row(record["row"], number, columns, record["where"])
            missing = sum(rollout is None for rollout in row_rollouts)
            context.notes.count(WITHOUT_REWARD, "rollout", missing)
            for rollout in filter(None, row_rollouts):
                if not (context.has_tokenizer or rollout.length):
                    raise PoiseError(f"{record['where']}: no tokens: {TOKENS_REMEDY}")
                rollouts.append(rollout)
        if rollouts:
            yield ImportedStep(number, tuple(rollouts))


def _columns_of_first_row(files: Sequence[Path], context: ImportContext) -> TableColumns:
    for file in files:
        for where, row in read_rows(file, lambda torn: None):
            columns = recognise_columns(row, where, named=context.columns, reward=context.reward)
            _check_tokens(columns, context)
            return columns
    raise PoiseError(f"{files[0]}: no rows in it")


def _check_tokens(columns: TableColumns, context: ImportContext) -> None:
    if not context.has_tokenizer and not {"response_tokens", "num_tokens"} & set(columns.names):
        raise PoiseError(f"the table has texts without token counts: {TOKENS_REMEDY}")


def _sort_by_step(
    files: Sequence[Path], columns: TableColumns, context: ImportContext
) -> dict[int, Path]:
    """A scratch file for each step, with its rows in the order of the files."""
    scratch: dict[int, Path] = {}
    for index, file in enumerate(files):
        context.show_progress(f"reading {file.name}")
        number_of_file = _number_of_file(file, index, len(files))
        rows = read_rows(file, context.notes.name_torn_file)
        # Rows of a step mostly follow one another: its file is opened once for all of them.
        for number, step_rows in groupby(
            rows, key=lambda row: _step_of_row(row[1], columns, number_of_file, row[0])
        ):
            path = scratch.setdefault(number, context.scratch / f"table_{number:010d}.jsonl")
            with path.open("a", encoding="utf-8") as lines:
                for where, row in step_rows:
                    lines.write(json.dumps({"where": where, "row": row}, default=str) + "\n")
    return scratch


def _number_of_file(file: Path, index: int, num_files: int) -> int:
    """The step of a file whose rows name none: the number in its name, else its place from 1."""
    number = _number_in_name(file)
    return number if number is not None and num_files > 1 else index + 1


def _step_of_row(
    row: Mapping[str, Any], columns: TableColumns, number_of_file: int, where: str
) -> int:
    if "step" not in columns.names:
        return number_of_file
    step = columns.value(row, "step")
    is_whole = is_number(step) and float(step).is_integer()
    return check_step(int(float(step)) if is_whole else step, where)


# -- rows -> rollouts -----------------------------------------------------------------------------


def _parse_row(
    row: Mapping[str, Any], step: int, columns: TableColumns, where: str
) -> list[ImportedRollout | None]:
    """The rollouts of a row, of which there are several if it has a list of responses.

    None for a rollout without a reward.
    """
    prompt, response = columns.value(row, "prompt"), columns.value(row, "response")
    if prompt is None:
        raise PoiseError(f"{where}: no prompt in the column {columns.names['prompt']!r}")
    if response is None and isinstance(prompt, list):
        conversation = split_conversation(prompt, where)
        return [_parse_rollout(row, step, columns, where, conversation, None)]
    if response is None:
        raise PoiseError(
            f"{where}: no response: name its column, as --columns response=NAME (columns: "
            f"{', '.join(map(str, row))})"
        )
    if isinstance(prompt, list):
        prompt = usual_messages(prompt)
    if not isinstance(response, list) or is_conversation(response):
        return [
            _parse_rollout(row, step, columns, where, SplitConversation(prompt, response), None)
        ]
    return [
        _parse_rollout(
            row,
            step,
            columns,
            f"{where}, response {index + 1}",
            SplitConversation(prompt, one_response),
            (index, len(response)),
        )
        for index, one_response in enumerate(response)
    ]


def _parse_rollout(
    row: Mapping[str, Any],
    step: int,
    columns: TableColumns,
    where: str,
    conversation: SplitConversation,
    place: tuple[int, int] | None,
) -> ImportedRollout | None:
    """One rollout; `place` is (index, number of responses) where the row has several."""

    def own_value(value: Any, name: str) -> Any:
        if place is None or value is None:
            return value
        index, number = place
        if not isinstance(value, list) or len(value) != number:
            raise PoiseError(
                f"{where}: the row has {number} responses, so {name!r} has to be a list of as many "
                "values"
            )
        return value[index]

    reward = _total_reward(
        {name: own_value(look_up(row, name), name) for name in columns.rewards}, columns, where
    )
    if reward is None:
        return None
    values = {
        meaning: own_value(columns.value(row, meaning), columns.names[meaning])
        for meaning in PER_RESPONSE_COLUMNS
        if meaning in columns.names
    }
    prompt_id = columns.value(row, "prompt_id")
    prompt_id = name_prompt("table", conversation.prompt) if prompt_id is None else str(prompt_id)
    group = columns.value(row, "group")
    rollout = text_rollout(
        prompt_id,
        f"{step}:{prompt_id if group is None else group}",
        conversation.prompt,
        conversation.response,
        reward,
        where,
        columns.value(row, "answer"),
    )
    tokens, prompt_tokens = values.get("response_tokens"), columns.value(row, "prompt_tokens")
    num_tokens = values.get("num_tokens")
    has_tokens = tokens is not None and is_token_list(tokens) and bool(tokens)
    return replace(
        rollout,
        segments=conversation.segments,
        prompt_tokens=prompt_tokens if is_token_list(prompt_tokens) else None,
        response_tokens=tokens if has_tokens else None,
        num_tokens=None if has_tokens else _as_count(num_tokens, where),
        sampled_logprobs=select_numbers(values.get("logprobs"), range(len(tokens)))
        if tokens and has_tokens
        else None,
        advantage=_as_number(values.get("advantage"), "advantage", where),
        finished=_has_finished(columns.names.get("finished", ""), values.get("finished")),
    )


def _total_reward(values: Mapping[str, Any], columns: TableColumns, where: str) -> float | None:
    """The weighted sum of the reward's columns; None where none of them has a value."""
    terms = [
        weight * number
        for name, weight in columns.rewards.items()
        if (number := _as_number(values[name], f"reward {name!r}", where)) is not None
    ]
    return sum(terms) if terms else None


def _as_number(value: Any, name: str, where: str) -> float | None:
    """The number; true and false count as 1 and 0. None if it is missing."""
    if value is None:
        return None
    if isinstance(value, bool) or str(value).lower() in ("true", "false"):
        return float(str(value).lower() == "true")
    if not is_number(value):
        raise PoiseError(f"{where}: the {name} {str(value)[:40]!r} is not a number")
    return float(value)


def _as_count(value: Any, where: str) -> int | None:
    number = _as_number(value, "number of tokens", where)
    return None if number is None else int(number)


def _has_finished(name: str, value: Any) -> bool | None:
    """Whether a response ended by itself, from `finished`, `truncated` or a reason for its end."""
    if value is None:
        return None
    text = str(value).lower()
    if text in ("true", "false"):
        return (text == "true") != (name.lower() == "truncated")
    return text not in CUT_OFF_REASONS


SOURCE = RolloutSource(
    "your own trainer",
    "JSON lines, JSON, parquet or CSV with a prompt, a response and a reward in each row; other "
    "names of columns: --columns prompt=NAME,response=NAME,reward=NAME",
    find_files,
    read_steps,
    has_tokens=True,
    is_fallback=True,
    find_candidates=find_tables,
)
