r"""A file of problems, one JSON object a line: {"id": ..., "problem": ..., "answer": ...}.

Answers may be text or numbers, ids text or whole numbers; an optional "solution" is kept for
`poise warmup`, an optional "generic" for anchors; of other fields those that a reward of the user's
asks for, any JSON (`keep`). A solution without a \boxed{} gets its answer in one, because that is
what the verifier reads: a model must be shown the form it will be paid for.

Held-out problems come from a second file, or are the `heldout` records whose ids hash lowest: the
same ones however the file is ordered, and whatever is added to it moves few.
No problem text is on both sides: a training record that repeats a held-out one is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError, unknown
from counterpoise.task.prompts import Task
from counterpoise.task.split_heldout import drop_heldout_texts, hold_out
from counterpoise.types import NO_COLUMNS, Columns, Prompt
from counterpoise.verify.math.boxed import boxed


@dataclass(frozen=True, slots=True)
class FieldNames:
    """What a file, or a dataset, calls the parts of a problem.

    Example: Fields(problem="question", answer="gold", remedy="name it by --fields {role}=NAME")
    """

    problem: str = "problem"
    answer: str = "answer"
    id: str = "id"
    solution: str = "solution"
    generic: str = "generic"
    keep: tuple[str, ...] = ()  # further ones, for a reward that asks for them
    remedy: str = "set task.{role}_field"  # for a record without one of the first three

    def kept_columns(self, record: Mapping[str, Any]) -> Columns:
        """What is kept of a record, None where it has none."""
        return {name: record.get(name) for name in self.keep} if self.keep else NO_COLUMNS

    def check_columns_exist(self, there: Collection[str], where: str) -> None:
        """`there`: every name that some record has."""
        for name in self.keep:
            if name not in there:
                raise PoiseError(
                    f"{where}: {unknown('column', name, there)}, and a reward asks for it: its "
                    "parameters may be responses, answers, prompts and columns"
                )


DEFAULT_FIELDS = FieldNames()


def load(
    path: str,
    *,
    heldout_path: str = "",
    heldout: int = 128,
    problem_field: str = "problem",
    answer_field: str = "answer",
    id_field: str = "id",
    solution_field: str = "solution",
    generic_field: str = "generic",
    keep: Sequence[str] = (),
) -> Task:
    """Training problems in the order of the file, held-out ones in theirs or in hash order."""
    if not path:
        raise PoiseError("the jsonl task needs a file: set task.path")
    fields = FieldNames(
        problem_field, answer_field, id_field, solution_field, generic_field, tuple(keep)
    )
    prompts = read_problems(path, fields)
    if heldout_path:
        kept = read_problems(heldout_path, fields)
        return Task(Path(path).stem, drop_heldout_texts(prompts, kept, path), kept)
    train, kept = hold_out(prompts, heldout, path)
    return Task(Path(path).stem, train, kept)


def read_problems(path: str, fields: FieldNames = DEFAULT_FIELDS) -> list[Prompt]:
    """All problems of one file; the first fault is named with its line."""
    prompts: list[Prompt] = []
    line_of: dict[str, int] = {}
    there: set[str] = set()
    for line, text in _lines(path):
        where = f"{path}:{line}"
        record = _parse(text, where)
        there |= record.keys()
        kept = fields.kept_columns(
            json.loads(text) if fields.keep else record
        )  # numbers as numbers
        prompt = to_prompt(record, where, fields, kept)
        if prompt.id in line_of:
            raise PoiseError(f"{where}: id '{prompt.id}' is also on line {line_of[prompt.id]}")
        line_of[prompt.id] = line
        prompts.append(prompt)
    if not prompts:
        raise PoiseError(f"{path}: no records; one JSON object a line is expected")
    fields.check_columns_exist(there, path)
    return prompts


def to_prompt(
    record: Mapping[str, Any],
    where: str,
    fields: FieldNames = DEFAULT_FIELDS,
    columns: Columns = NO_COLUMNS,
) -> Prompt:
    """A record's fields as a prompt, each checked.

    Example:
        >>> to_prompt({"id": 7, "q": "1 + 1 = ?", "a": 2}, "line 1", Fields("q", "a"))
        Prompt(id='7', problem='1 + 1 = ?', answer='2', solution='', generic='')
    """
    found: dict[str, str] = {}
    for role, name in (("problem", fields.problem), ("answer", fields.answer), ("id", fields.id)):
        if name not in record:
            present = ", ".join(sorted(record)) or "none"
            how = fields.remedy.format(role=role)
            raise PoiseError(f"{where}: no field '{name}' (fields: {present}); {how}")
        value = record[name]
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise PoiseError(f"{where}: field '{name}' is neither text nor a number")
        found[role] = str(value).strip()
        if not found[role]:
            raise PoiseError(f"{where}: field '{name}' is empty")
    for role, name in (("solution", fields.solution), ("generic", fields.generic)):
        text = record.get(name)
        found[role] = text.strip() if isinstance(text, str) else ""
    for role, text in found.items():
        if not _is_encodable(text):
            raise PoiseError(
                f"{where}: the {role} holds half a surrogate pair, which is no character: mend it"
            )
    solution = with_box(found.pop("solution"), found["answer"])
    return Prompt(**found, solution=solution, columns=columns)


def _is_encodable(text: str) -> bool:
    """JSON can hold halves of surrogate pairs as escapes; no file and no tokenizer can."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def with_box(solution: str, answer: str) -> str:
    r"""The solution, with a last line that boxes the answer if it boxes none itself.

    Example:
        >>> with_box("4 * 3 = 12 pens.", "12")
        '4 * 3 = 12 pens.\nThe answer is \\boxed{12}.'
    """
    if not solution or boxed(solution) is not None:
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
    except UnicodeDecodeError as error:
        raise PoiseError(f"{path}:{number}: not UTF-8 ({error.reason}); convert the file") from None
    except OSError as error:
        raise PoiseError(f"{path}: cannot be read: {error.strerror}") from None


def _parse(text: str, where: str) -> dict[str, Any]:
    try:  # numbers with a point stay as written: 0.10 is not 0.1, and 1e400 is not infinity
        record = json.loads(text, parse_float=str, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise PoiseError(f"{where}: not JSON ({error})") from None
    if not isinstance(record, dict):
        raise PoiseError(f'{where}: not an object; a line looks like {{"id": "1", ...}}')
    return record


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")
