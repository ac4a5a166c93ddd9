"""Import rollouts in Counterpoise's own format: a run folder, or JSON lines of your trainer.

    {"prompt_id": "p7", "reward": 1.0, "response_tokens": [5, 9, 2], ...}

A folder has rollouts/step_NNNNN.jsonl; its plans and tokens are copied unchanged. A file may have
any name; its step is the number after the last "_" or "-" of the name (mine-12.jsonl), or 1.
`group`, a text or a whole number, names the rollouts of a prompt in a step; without it, rollouts of
a step with the same prompt_id are a group. All other fields of docs/reference/run-folder.md are
kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise.errors import PoiseError, first_line
from counterpoise.hosts.importing.formats import (
    CopiedFolder,
    ImportContext,
    ImportedRollout,
    ImportedStep,
    RolloutSource,
    answer_text,
    check_reward,
)
from counterpoise.hosts.importing.json_lines import peek_object, read_objects
from counterpoise.hosts.importing.plan_records import METRICS_OF_PLANS
from counterpoise.hosts.importing.token_spans import is_token_list
from counterpoise.store.folder import RunFolder, is_imported, is_run
from counterpoise.store.imported import read_origin
from counterpoise.store.parquet_errors import PARQUET_ERRORS
from counterpoise.store.schema import ROLLOUTS
from counterpoise.store.turns import turns_from_record
from counterpoise.types import Turn

REQUIRED_FIELDS = ("prompt_id", "reward")
TOKEN_FIELDS = ("response_tokens", "num_tokens")  # one of them
# These become attributes of ImportedRollout; other fields are copied.
PARSED_FIELDS = (
    "group", "prompt_id", "reward", "advantage", "prompt", "response", "answer", "finished",
    "turns", "prompt_tokens", "response_tokens", "num_tokens", "sampled_logprobs",
)  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_number_list(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, int | float) for value in values)


def _is_name(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


# (field, whether a value can be used, what it should be)
OPTIONAL_FIELDS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("group", _is_name, "a text or a whole number"),
    ("advantage", _is_number, "a number"),
    ("prompt", lambda value: isinstance(value, str), "a text"),
    ("response", lambda value: isinstance(value, str), "a text"),
    ("prompt_tokens", is_token_list, "a list of token ids"),
    ("sampled_logprobs", _is_number_list, "a list of numbers"),
    ("finished", lambda value: isinstance(value, bool), "true or false"),
    ("turns", lambda value: isinstance(value, list), "a list"),
)


def find_files(path: Path) -> list[Path]:
    if path.is_file():
        names = peek_object(path).keys() if path.suffix == ".jsonl" else set()
        is_own = set(REQUIRED_FIELDS) <= names and bool(names & set(TOKEN_FIELDS))
        return [path] if is_own else []
    files = (path / "rollouts").glob("step_*.jsonl")
    return sorted((file for file in files if file.is_file()), key=_step_of_file)


def _step_of_file(file: Path) -> int:
    number = re.search(r"(?:^|[_-])([0-9]+)$", file.stem)
    return int(number[1]) if number else 1


def read_steps(files: Sequence[Path], context: ImportContext) -> Iterator[ImportedStep]:
    context.refuse_reward_option("rollouts have one reward")
    folder = RunFolder(files[0].parent.parent)
    is_folder = files[0].parent.name == "rollouts" and (folder.path / "metrics.jsonl").is_file()
    plans = {plan["iteration"]: plan for plan in folder.read("plans")} if is_folder else {}
    metrics = {line["iteration"]: line for line in folder.read("metrics")} if is_folder else {}
    tables = folder.step_files("tokens") if is_folder else {}
    for file in files:
        number = _step_of_file(file)
        rollouts = [
            _parse_rollout(record, number, where)
            for where, record in read_objects(file, REQUIRED_FIELDS, "Counterpoise")
        ]
        if rollouts:
            plan = plans.get(number)
            step = ImportedStep(number, tuple(rollouts))
            if plan is not None and "steps" in plan:
                table = _read_table(tables[number]) if number in tables else None
                line = metrics.get(number, {})
                step = replace(
                    step,
                    plan_record=plan,
                    plan_metrics={name: line[name] for name in METRICS_OF_PLANS if name in line},
                    token_table=table,
                )
            yield step


def find_copied_folder(files: Sequence[Path]) -> CopiedFolder | None:
    """The run folder that the files belong to, with what an earlier import recorded there."""
    folder = files[0].parent.parent
    if files[0].parent.name != "rollouts" or not (is_run(folder) or is_imported(folder)):
        return None
    if not is_imported(folder):
        return CopiedFolder(folder, SOURCE.title)
    origin = read_origin(folder)
    return CopiedFolder(
        folder,
        origin.source,
        tokenizer=origin.tokenizer,
        notes=(*origin.notes, f"imported again from {folder.resolve().name}"),
        encoded_tokens=origin.has_encoded_tokens,
    )


def _parse_rollout(record: dict[str, Any], step: int, where: str) -> ImportedRollout:
    prompt_id = str(record["prompt_id"])
    tokens = record.get("response_tokens")
    num_tokens = None
    if tokens is None and _is_count(record.get("num_tokens")):
        num_tokens = record["num_tokens"]
    elif tokens is None or not is_token_list(tokens) or not tokens:
        raise PoiseError(
            f"{where}: no 'response_tokens': a list of token ids is needed, or their number as "
            "'num_tokens'"
        )
    for field_name, is_valid, expected in OPTIONAL_FIELDS:
        if record.get(field_name) is not None and not is_valid(record[field_name]):
            raise PoiseError(f"{where}: {field_name!r} is not {expected}: fix or remove it")
    group = record.get("group")
    return ImportedRollout(
        group=group
        if isinstance(group, str)
        else f"{step}:{prompt_id if group is None else group}",
        prompt_id=prompt_id,
        reward=check_reward(record["reward"], where),
        prompt=record.get("prompt"),
        response=record.get("response"),
        answer=answer_text(record.get("answer")),
        prompt_tokens=record.get("prompt_tokens"),
        response_tokens=tokens,
        num_tokens=num_tokens,
        advantage=record.get("advantage"),
        sampled_logprobs=record.get("sampled_logprobs"),
        finished=record.get("finished"),
        turns=_parse_turns(record, where),
        further_fields={
            name: record[name] for name in ROLLOUTS if name in record and name not in PARSED_FIELDS
        },
    )


def _parse_turns(record: dict[str, Any], where: str) -> tuple[Turn, ...]:
    if not record.get("turns"):
        return ()
    try:
        return turns_from_record(record)
    except (ValueError, TypeError, OverflowError) as fault:
        raise PoiseError(
            f"{where}: 'turns' cannot be read ({first_line(fault)}): fix or remove it"
        ) from fault


def _read_table(file: Path) -> pa.Table:
    try:
        return pq.read_table(file)
    except PARQUET_ERRORS as fault:
        raise PoiseError(f"{file} is damaged: {first_line(fault)}") from fault


SOURCE = RolloutSource(
    "Counterpoise",
    "rollouts/step_N.jsonl, or JSON lines with prompt_id, reward and response_tokens or num_tokens",
    find_files,
    read_steps,
    has_tokens=True,
    is_foreign=False,
    find_copied_folder=find_copied_folder,
)
