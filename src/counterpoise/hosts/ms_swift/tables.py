"""Read completions.jsonl of ms-swift: one table for each time that it was appended to.

    {"step": ["5", "5"], "prompt": [...], "completion": [...], "Accuracy": [...], "Format": [...],
     "advantages": [...], "entropy": [...], "solution": [...], "num_turns": [...]}
    {"gen_step": [0, 0], "prompt": [...], "completion": [...], "Accuracy": [...], "advantages": ...}
    {"gen_step": 0, "prompt": "...", "completion": "...", "reward": 1.0}

`JsonlWriter.append` writes a dict as one line and a list of dicts as a line each. So the
transformers trainer (first line) and Megatron's (second) write a table of columns in each line, and
the Ray trainer a line for each rollout; its lines in a row with the same gen_step are one table.

    step        optimizer steps done when the table was logged, as a text
    gen_step    steps done before the generation, from 0. Megatron counts from 0 again after a
                resume, Ray goes on
    prompt      text after the chat template, with special tokens and all turns but the last
    completion  text of the last turn
    Accuracy... one column for each reward function, between completion and advantages, not
                weighted; NaN where a function gave none
    advantages  one number for each rollout
    entropy     means over the tokens, in another order than the rows where a generation has several
                batches on several ranks: not read
    solution    the reference answer, if every row of the data has one
    num_turns   if a multi-turn scheduler gave it
    reward      Ray: sum of the reward functions without their weights; NaN if one of them gave none
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.json_lines import (
    LARGEST_STEP,
    check_step,
    open_lines,
    peek_object,
    read_objects,
)
from counterpoise.hosts.importing.notes import ImportNotes

KNOWN_FORMAT = "ms-swift 4.6.0"
FILE_NAME = "completions.jsonl"
FIRST_KEY = re.compile(rb'\{"(step": \[|gen_step": (\[|[0-9]))')
STEP_KEYS = ("step", "gen_step")


@dataclass(frozen=True, slots=True)
class CompletionTable:
    """The rollouts of one append.

    Example:
        CompletionTable("completions.jsonl, line 3", 15, ["How many?"] * 2, ["3", "4"],
                        {"Accuracy": np.array([1.0, 0.0])}, np.array([0.7, -0.7]))
    """

    where: str
    step: int
    prompts: list[str]
    completions: list[str]
    rewards: dict[str, np.ndarray]  # by reward function: one number for each rollout, or NaN
    advantages: np.ndarray | None = None  # None: Ray
    solutions: list[Any] | None = None
    turn_counts: list[Any] | None = None
    writer: str = "transformers"  # or "megatron" or "ray"
    is_evaluation: bool = False

    def __len__(self) -> int:
        return len(self.prompts)

    def rows(self) -> list[tuple[object, ...]]:
        """What tells rollouts apart; equal rows of two tables are the same rollout."""
        advantages = [None] * len(self) if self.advantages is None else self.advantages.tolist()
        return list(zip(self.prompts, self.completions, map(repr, advantages), strict=True))

    def without_first(self, count: int) -> CompletionTable:
        """The rows after the first `count`."""

        def cut(column: Any) -> Any:
            return None if column is None else column[count:]

        return replace(
            self,
            prompts=cut(self.prompts),
            completions=cut(self.completions),
            rewards={name: cut(column) for name, column in self.rewards.items()},
            advantages=cut(self.advantages),
            solutions=cut(self.solutions),
            turn_counts=cut(self.turn_counts),
        )


def is_completions_file(file: Path) -> bool:
    """Whether its first line is ms-swift's; a torn one is known by how it begins."""
    if file.suffix != ".jsonl" or not file.is_file():
        return False
    first = peek_object(file)
    if first:
        has_step = any(key in first for key in STEP_KEYS)
        is_table = isinstance(first.get("completion"), list)
        is_row = isinstance(first.get("completion"), str) and "gen_step" in first
        return has_step and "prompt" in first and (is_table or is_row)
    try:
        with open_lines(file) as lines:
            return file.name == FILE_NAME and bool(FIRST_KEY.match(lines.read(64)))
    except OSError:
        return False


def read_tables(file: Path, notes: ImportNotes) -> Iterator[CompletionTable]:
    """The tables in the order of writing; a torn last line is left out, with its table."""
    torn_files: list[Path] = []
    ray_rows: list[tuple[str, dict[str, Any]]] = []
    for where, record in read_objects(
        file, ("prompt", "completion"), KNOWN_FORMAT, torn_files.append
    ):
        if isinstance(record["completion"], list):
            yield _parse_columns(record, where)
            continue
        if "gen_step" not in record or "reward" not in record:
            raise PoiseError(
                f"{where}: no 'gen_step' and 'reward', so no rollout of GRPO; the format of "
                f"{KNOWN_FORMAT} can be read"
            )
        if ray_rows and record["gen_step"] != ray_rows[0][1]["gen_step"]:
            yield _join_rows(ray_rows)
            ray_rows = []
        ray_rows.append((where, record))
    if torn_files:
        notes.name_torn_file(file)
    elif ray_rows:
        yield _join_rows(ray_rows)


def _parse_columns(record: dict[str, Any], where: str) -> CompletionTable:
    step_key = next((key for key in STEP_KEYS if key in record), None)
    columns = list(record)
    if step_key is None or "advantages" not in record:
        missing = "advantages" if step_key else "step"
        raise PoiseError(
            f"{where}: no '{missing}' (columns: {', '.join(columns)}): trainers without rewards "
            f"(GKD), and other versions; GRPO's tables of {KNOWN_FORMAT} can be read"
        )
    # The reward functions stand between these two; further columns follow.
    names = columns[columns.index("completion") + 1 : columns.index("advantages")]
    if not names:
        raise PoiseError(
            f"{where}: no reward functions between 'completion' and 'advantages' (columns: "
            f"{', '.join(columns)}): a run without rewards, or columns in another order"
        )
    prompts = _check_texts(record["prompt"], "prompt", where)
    count = len(prompts)
    optional = {
        name: record[name] if _is_column(record.get(name), count) else None
        for name in ("solution", "num_turns")
    }
    for name in (step_key, "completion"):
        if not _is_column(record[name], count):
            raise PoiseError(
                f"{where}: '{name}' is not a list of {count} values, as many as prompts: the line "
                "was changed, remove it"
            )
    return CompletionTable(
        where=where,
        step=_only_step(record[step_key], where) if count else 0,
        prompts=prompts,
        completions=_check_texts(record["completion"], "completion", where),
        rewards={name: _check_numbers(record[name], name, count, where) for name in names},
        advantages=_check_numbers(record["advantages"], "advantages", count, where),
        solutions=optional["solution"],
        turn_counts=optional["num_turns"],
        writer="transformers" if step_key == "step" else "megatron",
    )


def _join_rows(rows: list[tuple[str, dict[str, Any]]]) -> CompletionTable:
    """The table of a generation that was written in a line for each rollout."""
    for where, record in rows:
        for name in ("prompt", "completion"):
            _check_texts([record[name]], name, where)
        _check_numbers([record["reward"]], "reward", 1, where)
    where, first = rows[0]
    return CompletionTable(
        where=where,
        step=check_step(first["gen_step"], where),
        prompts=[record["prompt"] for _, record in rows],
        completions=[record["completion"] for _, record in rows],
        rewards={"reward": np.array([record["reward"] for _, record in rows], dtype=float)},
        writer="ray",
    )


def _is_column(values: Any, count: int) -> bool:
    return isinstance(values, list) and len(values) == count


def _only_step(steps: Any, where: str) -> int:
    """The step of a table, a text or a whole number that all of its rows have."""
    distinct = set(map(str, steps))
    if len(distinct) != 1:
        raise PoiseError(f"{where}: rows of several steps in one table: the line was changed")
    step = str(steps[0])
    is_number = step.isascii() and step.isdecimal() and len(step) <= len(str(LARGEST_STEP))
    return check_step(int(step) if is_number else steps[0], where)


def _check_texts(values: Any, name: str, where: str) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise PoiseError(f"{where}: '{name}' holds other values than texts: the line was changed")
    return values


def _check_numbers(values: Any, name: str, count: int, where: str) -> np.ndarray:
    if not _is_column(values, count) or not set(map(type, values)) <= {int, float}:
        raise PoiseError(
            f"{where}: '{name}' is not a list of {count} numbers, as many as prompts: the line was "
            "changed, or two reward functions have this name"
        )
    try:
        return np.array(values, dtype=float)
    except OverflowError as fault:  # an integer of hundreds of digits
        raise PoiseError(f"{where}: '{name}' holds a number that is too large") from fault
