"""Read the problems of a JSONL file, each with the line it came from.

Only the problem text is required. An `id` names an item (otherwise its line number does), and an
`answer` helps to recognise a rewording. Lines are kept unchanged, so that a cleaned file is the
same file with fewer lines.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError
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
    line: int = 0
    raw: str = ""  # without its line end


@dataclass(frozen=True, slots=True)
class EvalSet:
    """A benchmark: a named set of problems that a model is evaluated on."""

    name: str
    items: Sequence[Item]


def from_prompts(prompts: Sequence[Prompt]) -> list[Item]:
    """The training prompts of a run as items."""
    return [Item(prompt.id, prompt.problem, prompt.answer) for prompt in prompts]


def read_benchmarks(paths: Sequence[Path], problem_field: str = "problem") -> list[EvalSet]:
    """Read benchmarks; each is named after its file, with its folder if names repeat."""
    if not paths:
        raise PoiseError("no benchmark is given: name .jsonl files of problems with --eval")
    stems = [path.stem for path in paths]
    names = [
        stem if stems.count(stem) == 1 else str(path)
        for stem, path in zip(stems, paths, strict=True)
    ]
    if len(set(names)) < len(names):
        raise PoiseError(f"{next(n for n in names if names.count(n) > 1)} is named twice")
    return [
        EvalSet(name, read_items(path, problem_field, "--fields problem=NAME"))
        for name, path in zip(names, paths, strict=True)
    ]


def read_items(
    path: Path, problem_field: str = "problem", remedy: str = "--problem-field"
) -> list[Item]:
    """All problems of a file; an error names the line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split(
            "\n"
        )  # not splitlines: U+2028 may be in a text
    except FileNotFoundError:
        raise PoiseError(f"{path}: no such file; a .jsonl file of problems is expected") from None
    except IsADirectoryError:
        raise PoiseError(f"{path}: a folder; name the .jsonl files in it") from None
    except UnicodeDecodeError as error:
        raise PoiseError(f"{path}: not UTF-8 ({error.reason}); convert the file") from None
    except OSError as error:
        raise PoiseError(f"{path}: cannot be read: {error.strerror}") from None
    items = [
        _item(raw, f"{path}:{number}", number, problem_field, remedy)
        for number, raw in enumerate(lines, 1)
        if raw.strip()
    ]
    if not items:
        raise PoiseError(f"{path}: no records; one JSON object per line is expected")
    return items


def _item(raw: str, where: str, line: int, problem_field: str, remedy: str) -> Item:
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise PoiseError(f"{where}: not JSON ({error})") from None
    if not isinstance(record, dict):
        raise PoiseError(f'{where}: not an object; a line looks like {{"problem": "..."}}')
    problem = record.get(problem_field)
    if problem_field not in record:
        present = ", ".join(sorted(record)) or "none"
        raise PoiseError(
            f"{where}: no field '{problem_field}' (fields: {present}); name it by {remedy}"
        )
    if not isinstance(problem, str) or not problem.strip():
        raise PoiseError(f"{where}: field '{problem_field}' is not text, or empty")
    return Item(
        _text(record.get("id")) or f"line {line}", problem, _text(record.get("answer")), line, raw
    )


def _text(value: Any) -> str:
    """Text and numbers as text; "" for anything else."""
    return str(value).strip() if isinstance(value, str | int | float) else ""
