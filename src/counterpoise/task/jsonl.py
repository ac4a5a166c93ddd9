r"""The `jsonl` task: one JSON object per line, {"id": ..., "problem": ..., "answer": ...}.

Answers may be text or numbers, ids text or whole numbers. An optional "solution" is kept for
`poise warmup`, an optional "generic" for anchors, and any further field that a reward function of
the user needs (`keep`). A solution without a \boxed{} gets its answer in one, because the verifier
reads the box: a model must see the form that is rewarded.

Held-out problems come from a second file, or are the `heldout` records whose ids have the lowest
hashes: they do not depend on the order of the file, and adding records changes few of them.
No problem text is on both sides: a training record that repeats a held-out one is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError, unknown_name
from counterpoise.task.prompts import Task
from counterpoise.task.split_heldout import drop_heldout_texts, hold_out
from counterpoise.types import ALL_COLUMNS, NO_COLUMNS, Columns, Prompt
from counterpoise.verify.math.boxed import extract_boxed


@dataclass(frozen=True, slots=True)
class FieldNames:
    """The names that a file or dataset uses for the fields of a problem.

    Example: FieldNames(problem="question", answer="gold", remedy="name it by --fields {role}=NAME")
    """

    problem: str = "problem"
    answer: str = "answer"
    id: str = "id"
    solution: str = "solution"
    generic: str = "generic"
    keep: tuple[str, ...] = ()  # further fields, for a reward function that needs them
    remedy: str = "set task.{role}_field"  # if a record lacks one of the first three

    def kept_columns(self, record: Mapping[str, Any]) -> Columns:
        """The further fields of a record; None for those that it lacks."""
        if not self.keep:
            return NO_COLUMNS
        columns = dict(record) if ALL_COLUMNS in self.keep else {}
        return columns | {name: record.get(name) for name in self.keep if name != ALL_COLUMNS}

    def check_columns_exist(self, present_fields: Collection[str], where: str) -> None:
        """Raise an error for a further field that no record has."""
        for name in self.keep:
            if name not in present_fields and name != ALL_COLUMNS:
                raise PoiseError(
                    f"{where}: {unknown_name('column', name, present_fields)}, and a reward "
                    "function needs it: its parameters may be responses, answers, prompts and "
                    "columns"
                )


DEFAULT_FIELDS = FieldNames()


def load(
    path: str,
    *,
    heldout_path: str = "",
    heldout: int = 128,
    fields: FieldNames = DEFAULT_FIELDS,
) -> Task:
    """Load both sides; training problems keep the order of the file."""
    if not path:
        raise PoiseError("the jsonl task needs a file: set task.path")
    prompts = read_problems(path, fields)
    if heldout_path:
        heldout_prompts = read_problems(heldout_path, fields)
        return Task(
            Path(path).stem, drop_heldout_texts(prompts, heldout_prompts, path), heldout_prompts
        )
    train, heldout_prompts = hold_out(prompts, heldout, path)
    return Task(Path(path).stem, train, heldout_prompts)


def read_problems(path: str, fields: FieldNames = DEFAULT_FIELDS) -> list[Prompt]:
    """All problems of one file; an error names the line."""
    prompts: list[Prompt] = []
    line_of: dict[str, int] = {}
    present_fields: set[str] = set()
    for line, text in _lines(path):
        where = f"{path}:{line}"
        record = _parse(text, where)
        present_fields |= record.keys()
        columns = fields.kept_columns(
            json.loads(text) if fields.keep else record
        )  # with numbers as numbers
        prompt = to_prompt(record, where, fields, columns)
        if prompt.id in line_of:
            raise PoiseError(f"{where}: id '{prompt.id}' is also on line {line_of[prompt.id]}")
        line_of[prompt.id] = line
        prompts.append(prompt)
    if not prompts:
        raise PoiseError(f"{path}: no records; one JSON object per line is expected")
    fields.check_columns_exist(present_fields, path)
    return prompts


def to_prompt(
    record: Mapping[str, Any],
    where: str,
    fields: FieldNames = DEFAULT_FIELDS,
    columns: Columns = NO_COLUMNS,
) -> Prompt:
    """Check the fields of a record and return them as a prompt.

    Example:
        >>> to_prompt({"id": 7, "q": "1 + 1 = ?", "a": 2}, "line 1", Fields("q", "a"))
        Prompt(id='7', problem='1 + 1 = ?', answer='2', solution='', generic='')
    """
    values: dict[str, str] = {}
    for role, name in (("problem", fields.problem), ("answer", fields.answer), ("id", fields.id)):
        if name not in record:
            present = ", ".join(sorted(record)) or "none"
            remedy = fields.remedy.format(role=role)
            raise PoiseError(f"{where}: no field '{name}' (fields: {present}); {remedy}")
        value = record[name]
        # bool is a subclass of int in Python, but true is no answer.
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise PoiseError(f"{where}: field '{name}' is neither text nor a number")
        values[role] = str(value).strip()
        if not values[role]:
            raise PoiseError(f"{where}: field '{name}' is empty")
    for role, name in (("solution", fields.solution), ("generic", fields.generic)):
        text = record.get(name)
        values[role] = text.strip() if isinstance(text, str) else ""
    for role, text in values.items():
        if not _is_encodable(text):
            raise PoiseError(
                f"{where}: the {role} holds half a surrogate pair, which is no character: mend it"
            )
    solution = with_box(values.pop("solution"), values["answer"])
    return Prompt(**values, solution=solution, columns=columns)


def _is_encodable(text: str) -> bool:
    """JSON can hold halves of surrogate pairs as escapes; no file and no tokenizer can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def with_box(solution: str, answer: str) -> str:
    r"""The solution, with a last line that boxes the answer if it has no box.

    Example:
        >>> with_box("4 * 3 = 12 pens.", "12")
        '4 * 3 = 12 pens.\nThe answer is \\boxed{12}.'
    """
    if not solution or extract_boxed(solution) is not None:
        return solution
    return f"{solution}\nThe answer is \\boxed{{{answer}}}."


def _lines(path: str) -> Iterator[tuple[int, str]]:
    """Line numbers and text; blank lines are skipped, a byte order mark is dropped."""
    try:
        with Path(path).open("rb") as file:
            for number, raw in enumerate(file, 1):
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                if text.strip():
                    yield number, text
    except FileNotFoundError:
        raise PoiseError(f"{path}: no such file; name a .jsonl file") from None
    except IsADirectoryError:
        raise PoiseError(f"{path}: a folder; name one .jsonl file") from None
    except UnicodeDecodeError as error:  # `number` is the line that could not be decoded
        raise PoiseError(f"{path}:{number}: not UTF-8 ({error.reason}); convert the file") from None
    except OSError as error:
        raise PoiseError(f"{path}: cannot be read: {error.strerror}") from None


def _parse(text: str, where: str) -> dict[str, Any]:
    # Numbers with a point stay as written: 0.10 is not 0.1, and 1e400 is not infinity.
    try:
        record = json.loads(text, parse_float=str, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise PoiseError(f"{where}: not JSON ({error})") from None
    if not isinstance(record, dict):
        raise PoiseError(f'{where}: not an object; a line looks like {{"id": "1", ...}}')
    return record


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")
