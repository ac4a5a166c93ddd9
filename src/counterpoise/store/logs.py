"""Read the logs of a run folder; every line is checked before it is used.

An invalid line (from a crash, an editor or another tool) is named with its number. The checks cover
what all readers rely on: an object with an integer `iteration`; numbers in metrics.jsonl and
evaluations.jsonl; rows, groups and steps of plans.jsonl that fit together; checksums and gaps.
Which numbers exist differs from version to version and is left to the readers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError, first_line
from counterpoise.files import read_complete_lines
from counterpoise.store.plain_values import plain_text
from counterpoise.types import RowName

Record = dict[str, Any]
LogRecords = Sequence[Mapping[str, Any]]  # the lines of one log, to be read only
INT64_LIMIT = 2**63  # numpy and parquet have no larger integers
ROW_LISTS = ("group", "index", "advantage", "tokens", "born")  # in a plan: one entry per row


def read_log(file: Path, log: str) -> list[Record]:
    """The records of FOLDER/`log`.jsonl; a last line cut off by a crash is left out."""
    return list(iterate_log(file, log))


def iterate_log(file: Path, log: str) -> Iterator[Record]:
    """The same records, one at a time: plans of a long run need not fit into memory."""
    try:
        for line_number, line in enumerate(read_complete_lines(file), 1):
            try:
                record = parse_log_line(line, log)
            except (ValueError, RecursionError) as fault:
                reason = first_line(fault)
                raise PoiseError(
                    f"{file} is damaged: line {line_number}: {reason}; fix or remove the line"
                ) from fault
            yield record
    except UnicodeDecodeError as fault:
        raise PoiseError(f"{file} is damaged: {first_line(fault)}") from fault
    except OSError as fault:
        raise PoiseError(f"{file} cannot be read: {fault.strerror}") from fault


def parse_log_line(json_line: str, log: str) -> Record:
    """The record of a line; raises ValueError or RecursionError if readers cannot use it."""
    record = json.loads(json_line)
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    iteration = record.get("iteration")
    if not isinstance(iteration, int) or not 0 <= iteration < INT64_LIMIT:
        raise ValueError(f"iteration {_format_value(iteration)} is not a whole number of 0 or more")
    LOG_CHECKS.get(log, _check_nothing)(record)
    return record


def row_names(plan: Mapping[str, Any]) -> list[RowName]:
    """The rollout of every row of a plan, as readers of rollouts/ name it.

    Example:
        >>> row_names({"groups": ["7:a", "7:b"], "group": [1, 0, 1], "index": [0, 0, 1]})
        [('7:b', 0), ('7:a', 0), ('7:b', 1)]
    """
    groups = [plain_text(name) for name in plan["groups"]]
    return [
        (groups[group], index) for group, index in zip(plan["group"], plan["index"], strict=True)
    ]


def _check_nothing(record: Record) -> None: ...


def _check_numbers(record: Record) -> None:
    """Values are numbers, lists of numbers (turns) or lists of those (token types)."""
    for field, value in record.items():
        if not _is_numeric(value):
            raise ValueError(f"{field} {_format_value(value)} is not a number")


def _check_plan(record: Record) -> None:
    """Check a plan with its rows; runs without a report store only a description."""
    if not isinstance(record.get("describe", {}), dict):
        raise ValueError("describe is not an object")
    if "steps" not in record:
        return
    for field in ("steps", "groups", *ROW_LISTS):
        if not isinstance(record.get(field), list):
            raise ValueError(f"{field} is not a list")
    num_rows, group_names = len(record["group"]), record["groups"]
    if any(len(record[field]) != num_rows for field in ROW_LISTS):
        raise ValueError(f"{', '.join(ROW_LISTS)} differ in length")
    if not all(isinstance(group_name, str) for group_name in group_names):
        raise ValueError("groups holds something that is not a name")
    upper_limits = {
        "group": len(group_names),
        **dict.fromkeys(("index", "tokens", "born"), INT64_LIMIT),
    }
    for field, upper_limit in upper_limits.items():
        if not all(_is_int64(entry) and 0 <= entry < upper_limit for entry in record[field]):
            raise ValueError(
                f"{field} holds a value that is not a whole number of 0 or more, or is too large"
            )
    if not all(isinstance(entry, float) or _is_int64(entry) for entry in record["advantage"]):
        raise ValueError("advantage holds something that is not a number")
    for step in record["steps"]:
        if not isinstance(step, list) or not all(
            _is_int64(entry) and 0 <= entry < num_rows for entry in step
        ):
            raise ValueError("steps holds something that is not a list of rows")


def _check_benchmark(record: Record) -> None:
    names = ("benchmark", "title")
    if not all(isinstance(record.get(name), str) for name in names):
        raise ValueError("benchmark or title is not a text")
    needed = ("temperature", "top_p", "mean", "low", "high", "prompts", "samples")
    if missing := [name for name in needed if record.get(name) is None]:
        raise ValueError(f"{missing[0]} is missing")
    _check_numbers({name: value for name, value in record.items() if name not in names})


def _check_checksum(record: Record) -> None:
    if not isinstance(record.get("file"), str) or not isinstance(record.get("crc32"), str):
        raise ValueError("a checksum needs file and crc32, both texts")
    if not _is_int64(record.get("bytes")):
        raise ValueError("bytes is not a whole number")


def _check_gaps(record: Record) -> None:
    missing = record.get("missing")
    if not isinstance(missing, dict) or not all(
        isinstance(numbers, list) and all(map(_is_int64, numbers)) for numbers in missing.values()
    ):
        raise ValueError("missing is not an object of lists of iterations")


def _check_memory(record: Record) -> None:
    visits = record.get("prompts")
    if not isinstance(visits, dict) or not all(
        isinstance(visit, list) and len(visit) == 3 and all(map(_is_int64, visit))
        for visit in visits.values()
    ):
        raise ValueError("prompts is not an object of [right, scored, mixed]")
    if not _is_int64(record.get("next_position")):
        raise ValueError("next_position is not a whole number")
    influence = record.get("influence", {})
    if not isinstance(influence, dict) or not all(map(_is_numeric, influence.values())):
        raise ValueError("influence is not an object of numbers")


def _is_numeric(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_numeric, value))
    return value is None or isinstance(value, float) or _is_int64(value)


def _is_int64(value: object) -> bool:
    return isinstance(value, int) and abs(value) < INT64_LIMIT


def _format_value(value: object) -> str:
    """A short form of a value for a message."""
    # Python refuses to write integers of thousands of digits in decimal.
    is_huge = isinstance(value, int) and not _is_int64(value)
    short_form = f"{value:#x}" if is_huge else json.dumps(value)
    return short_form if len(short_form) <= 60 else f"{short_form[:60]}…"


LOG_CHECKS: dict[str, Callable[[Record], None]] = {
    "metrics": _check_numbers,
    "evaluations": _check_numbers,
    "benchmarks": _check_benchmark,
    "plans": _check_plan,
    "checksums": _check_checksum,
    "gaps": _check_gaps,
    "memory": _check_memory,
}
