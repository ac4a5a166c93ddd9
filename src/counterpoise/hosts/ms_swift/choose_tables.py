"""Choose the tables of ms-swift that are a generation of training, each once.

The transformers trainer writes its queues of the last `generation_batch_size` rollouts whenever it
logs, so a table may repeat rollouts of the one before:

    the same generation       with several optimizer steps a generation, and at the end of training
    its first rows, then all  with log_entropy, while its rows are trained for the first time
    old rows, then new ones   where a multi-turn scheduler returned fewer rows than the queues hold
    an evaluation's rows      after each evaluation

An evaluation logs too. The line of logging.jsonl that was written with a table says whether it is
one: its numbers are called eval_*. Without that file, the first table of a step counts.

A resumed run appends to the same file, from the step of its checkpoint: what was written before of
that step and later ones belongs to a branch that was given up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.json_lines import read_objects
from counterpoise.hosts.importing.notes import ImportNotes
from counterpoise.hosts.ms_swift.tables import CompletionTable, read_tables

LOG_NAME = "logging.jsonl"
REPEATED = "left out because they repeat the generation before: {}"
LOGGED_STEP = re.compile(r"([0-9]{1,9})/[0-9]+")  # 5/100: of 100


class ChosenTables:
    """The tables of a file that are imported; they can be read again and again.

    Example:
        steps = [table.step for table in ChosenTables(Path("output/completions.jsonl"))]
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.notes = ImportNotes()  # of the latest iteration over the tables
        steps: list[int | None] = []  # of every table; None: no rows
        self.writers: set[str] = set()
        for table in self._read():
            if self.writers and table.writer not in self.writers:
                raise PoiseError(
                    f"{table.where}: another trainer of ms-swift wrote the lines before: import "
                    "each run by itself"
                )
            self.writers.add(table.writer)
            if steps and table.writer == "megatron" and table.step < (steps[-1] or 0):
                raise PoiseError(
                    f"{table.where}: gen_step {table.step} after {steps[-1]}: Megatron counts from "
                    "0 again after a resume; copy the lines from here into a file of their own"
                )
            steps.append(table.step if len(table) else None)
        self.evaluations = (
            _find_evaluations(file, steps) if "transformers" in self.writers else set()
        )
        self.given_up = _find_given_up(steps)

    def _read(self) -> Iterator[CompletionTable]:
        return read_tables(self.file, self.notes)

    def __iter__(self) -> Iterator[CompletionTable]:
        self.notes = ImportNotes()
        self.notes.count(
            "left out because the run was resumed from an earlier step: {}",
            "table",
            len(self.given_up),
        )
        if "transformers" in self.writers and not self.file.with_name(LOG_NAME).is_file():
            self.notes.add(
                f"no {LOG_NAME} beside the file: an evaluation at a step that was not logged "
                "cannot be told from training"
            )
        written_steps: set[int] = set()
        for table in self._merge_repeated():
            if table.is_evaluation:
                self.notes.count(
                    f"left out because {LOG_NAME} says that they are evaluations: {{}}", "table"
                )
            elif table.step in written_steps:
                self.notes.count(
                    "left out because another table of their step was before them (an evaluation, "
                    "a resumed run): {}",
                    "table",
                )
            else:
                written_steps.add(table.step)
                yield table

    def _merge_repeated(self) -> Iterator[CompletionTable]:
        """Every generation once, as complete as it was written, at the step of its first table."""
        pending: CompletionTable | None = None
        pending_rows: list[tuple[object, ...]] = []
        repeated_rows = 0  # of `pending`: these were in the table before it
        for index, table in enumerate(self._read()):
            if index in self.given_up:
                continue
            if not len(table):
                self.notes.count(
                    "left out because they have no rows (no entropies with log_entropy): {}",
                    "table",
                )
                continue
            rows = table.rows()
            if pending is not None and rows[: len(pending_rows)] == pending_rows:
                self.notes.count(REPEATED, "table")
                pending = replace(table, step=pending.step, is_evaluation=pending.is_evaluation)
                pending_rows = rows
                continue
            overlap = _count_overlap(pending_rows, rows) if table.turn_counts else 0
            if overlap == len(rows):
                self.notes.count(REPEATED, "table")
                continue
            if pending is not None:
                yield pending.without_first(repeated_rows)
            self.notes.count(
                "{} began with rows of the table before: these are left out", "table", overlap > 0
            )
            pending = replace(table, is_evaluation=index in self.evaluations)
            pending_rows, repeated_rows = rows, overlap
        if pending is not None:
            yield pending.without_first(repeated_rows)


def _count_overlap(before: Sequence[object], rows: Sequence[object]) -> int:
    """How many of the first rows are the last ones of the table before.

    Example:
        >>> _count_overlap("abc", "bcd")
        2
    """
    longest = min(len(before), len(rows))
    return next((n for n in range(longest, 0, -1) if before[-n:] == rows[:n]), 0)


def _find_given_up(steps: Sequence[int | None]) -> set[int]:
    """Tables whose step was trained again after a resume.

    Example:
        >>> sorted(_find_given_up([5, 10, 15, 10, 15]))
        [1, 2]
    """
    kept: list[tuple[int, int]] = []  # step and table
    given_up: set[int] = set()
    for index, step in enumerate(steps):
        if step is None:
            continue
        if kept and step < kept[-1][0]:
            while kept and kept[-1][0] >= step:
                given_up.add(kept.pop()[1])
        kept.append((step, index))
    return given_up


def _find_evaluations(file: Path, steps: Sequence[int | None]) -> set[int]:
    """Tables that an evaluation wrote; the n-th line of a step belongs to its n-th table."""
    log = file.with_name(LOG_NAME)
    if not log.is_file():
        return set()
    is_evaluation: dict[int, list[bool]] = {}
    for _, record in read_objects(log, on_torn_file=lambda file: None):
        position = LOGGED_STEP.fullmatch(str(record.get("global_step/max_steps")))
        if position:
            has_numbers = any(key.startswith("eval_") for key in record)
            is_evaluation.setdefault(int(position[1]), []).append(has_numbers)
    evaluations: set[int] = set()
    tables_of_step: dict[int, int] = {}
    for index, step in enumerate(steps):
        if step is None:
            continue
        occurrence = tables_of_step.get(step, 0)
        tables_of_step[step] = occurrence + 1
        flags = is_evaluation.get(step, [])
        if occurrence < len(flags) and flags[occurrence]:
            evaluations.add(index)
    return evaluations
