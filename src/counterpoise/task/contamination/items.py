"""Read the problems of a data file or folder, each with the line it came from.

Only the problem text is required. An id names an item; without one its line or row number does, in
a folder of several files together with the file's name. An answer helps to recognise a rewording.
Columns are recognised as in training data. JSON lines are kept unchanged, so that a cleaned file is
the same file with fewer lines; records of other files are converted to JSON lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.task.columns import FieldOptions, recognise_columns, to_prompt
from counterpoise.task.empty_fields import counting_empty_fields
from counterpoise.task.read_files import look_up, read_records, write_json
from counterpoise.types import Prompt


@dataclass(frozen=True, slots=True)
class Item:
    """One problem of a training set or a benchmark.

    Example:
        Item(id="amc23-03", problem="How many ...", answer="9", line=4, raw='{"id": ...}')
    """

    id: str
    problem: str
    answer: str = ""
    line: int = 0  # from 1, in a file of JSON lines; 0 for rows of other files
    raw: str = ""  # the record as one line of JSON, without its line end


@dataclass(frozen=True, slots=True)
class BenchmarkItems:
    """A benchmark by name, with the problems that a model is evaluated on."""

    name: str
    items: Sequence[Item]


def from_prompts(prompts: Sequence[Prompt]) -> list[Item]:
    """The training prompts of a run as items."""
    return [Item(prompt.id, prompt.problem, prompt.answer) for prompt in prompts]


def read_benchmarks(
    paths: Sequence[Path],
    problem_field: str = "problem",
    remedy: str = "name it with --fields problem=NAME",
) -> list[BenchmarkItems]:
    """Read benchmarks; each is named after its file, with its folder if names repeat.

    `remedy` is what an error advises if the field is missing.
    """
    if not paths:
        raise PoiseError("no benchmark was given: name files of problems with --bench")
    return [
        BenchmarkItems(name, read_items(path, problem_field, remedy))
        for name, path in zip(name_benchmarks(paths), paths, strict=True)
    ]


def name_benchmarks(paths: Sequence[Path]) -> list[str]:
    """The names of benchmark files: without folder and suffix, unless two would be equal.

    Example:
        >>> name_benchmarks([Path("a/math.jsonl"), Path("a/test.jsonl"), Path("b/test.jsonl")])
        ['math', 'a/test.jsonl', 'b/test.jsonl']
    """
    stems = [path.stem for path in paths]
    names = [
        stem if stems.count(stem) == 1 else str(path)
        for stem, path in zip(stems, paths, strict=True)
    ]
    if len(set(names)) < len(names):
        raise PoiseError(f"{next(name for name in names if names.count(name) > 1)} is named twice")
    return names


def read_items(
    path: Path, problem_field: str = "problem", remedy: str = "name it with --problem-field"
) -> list[Item]:
    """All problems of a file or folder; an error names the line or row, and the remedy."""
    records = read_records(str(path))
    fields = FieldOptions(problem=problem_field, remedy=remedy, answers_required=False)
    chosen_columns = recognise_columns(records, fields)
    id_column = chosen_columns.id
    # Ids may repeat and be missing here, which `to_prompt` would refuse: they only name the items
    # of a report.
    chosen_columns = replace(chosen_columns, id="")
    items = []
    for record in records:
        with counting_empty_fields(records):
            prompt = to_prompt(record, chosen_columns, fields)
        row_label = f"row {record.row_name}"
        if record.line:
            file_stem = record.row_name.rpartition("/")[0]  # "" unless there are several files
            row_label = f"line {record.line}" + (f" of {file_stem}" if file_stem else "")
        item_id = _text(look_up(record.values, id_column)) or row_label
        raw = record.raw or write_json(record.values)
        items.append(Item(item_id, prompt.problem, prompt.answer, record.line, raw))
    return items


def _text(value: Any) -> str:
    """Text and numbers as text; "" for anything else."""
    return str(value).strip() if isinstance(value, str | int | float) else ""
