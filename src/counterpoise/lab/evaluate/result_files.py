"""What an evaluation leaves behind: a file for each (model, benchmark, way of sampling).

    OUT/evaluation.json                          the order of models, benchmarks and settings
    OUT/results/MODEL/BENCHMARK@0.6-0.95.jsonl   a header line, then a line a problem
    OUT/summary.json   OUT/report.html           made from those, again whenever asked for

The header says what was asked, of which weights and problems. A line is written when its problem
is judged, whole or not at all; what a crash left of a last line is cut off. The same command goes
on with what is missing. A file made with other settings is never mixed in: that is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from counterpoise.config.evaluation_settings import Setting
from counterpoise.errors import PoiseError
from counterpoise.files import FULL, append_line, replacing, whole_lines

SCHEMA = 1
ORDER_FILE = "evaluation.json"
RESULTS_FOLDER = "results"
# What a file must hold to be computed with; lists have an entry of the type for every sample.
HEADER_TYPES: dict[str, Any] = {
    "temperature": (int, float), "top_p": (int, float), "problems": int, "samples": int,
    "model": str, "benchmark": str, "title": str,
}  # fmt: skip
SAMPLE_TYPES: dict[str, Any] = {
    "rewards": (int, float), "votes": (str, type(None)), "tokens": int, "finished": bool,
    "responses": str,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ResultHeader:
    """All that decides the numbers of one file; its first line."""

    model: str  # label
    name: str  # what was loaded
    weights: str  # digest
    benchmark: str
    title: str
    problems: int
    problems_digest: str
    temperature: float
    top_p: float
    samples: int
    template: str
    max_new_tokens: int
    sampler: str
    device: str
    dtype: str
    rows: int
    seed: int
    verifier: str

    @property
    def setting(self) -> Setting:
        return Setting(self.temperature, self.top_p)

    @property
    def file(self) -> str:
        at = f"{self.temperature:g}-{self.top_p:g}"
        return f"{RESULTS_FOLDER}/{self.model}/{self.benchmark}@{at}.jsonl"


@dataclass(frozen=True, slots=True)
class JudgedProblem:
    """One problem and its samples; lists run over the samples, _G."""

    id: str
    problem: str
    answer: str
    rewards: Sequence[float]
    votes: Sequence[str | None]  # what was boxed; None: nothing
    tokens: Sequence[int]  # lengths
    finished: Sequence[bool]  # False: cut off at the limit
    responses: Sequence[str]


class ResultFile:
    """One file; `judged` grows a problem at a time."""

    def __init__(self, folder: Path, header: ResultHeader) -> None:
        self.folder, self.header = folder, header
        self.path = folder / header.file
        self.judged: dict[str, JudgedProblem] = {}
        self._begun = False

    def open(self) -> None:
        """Read what is there, without half a line at its end; another header is an error."""
        with _writing(self.path):
            self._begun = self.path.exists() and _cut_off(self.path) > 0
        if not self._begun:
            return
        header, self.judged = read_result_file(self.path)
        for field in fields(ResultHeader):
            before, now = getattr(header, field.name), getattr(self.header, field.name)
            if field.name != "name" and before != now:
                raise PoiseError(
                    f"{self.path} was made with {field.name}={before!r}, not {now!r}: choose "
                    "another --out, or remove the file"
                )

    def write(self, judged: JudgedProblem) -> None:
        with _writing(self.path):
            if not self._begun:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                append_line(self.path, json.dumps({"schema": SCHEMA, **asdict(self.header)}))
                self._begun = True
            append_line(self.path, json.dumps(asdict(judged), ensure_ascii=False))
        self.judged[judged.id] = judged


def read_result_file(path: Path) -> tuple[ResultHeader, dict[str, JudgedProblem]]:
    """The header and the problems judged so far, by id, in the order they were judged.

    Two commands at once, where folders cannot be locked, write the header and problems twice.
    """
    try:
        lines = [json.loads(line) for line in whole_lines(path)]
        if not lines or lines[0]["schema"] != SCHEMA:
            raise ValueError(f"its first line is no header of schema {SCHEMA}")
        header = ResultHeader(
            **{field.name: lines[0][field.name] for field in fields(ResultHeader)}
        )
        _check_types(header, HEADER_TYPES)
        judged = [JudgedProblem(**line) for line in lines[1:] if line != lines[0]]
        for one in judged:
            _check_judged(one, header.samples)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as fault:
        raise PoiseError(f"{path} is damaged: {fault}; remove it to judge again") from fault
    return header, {one.id: one for one in judged}


def _check_types(record: ResultHeader | JudgedProblem, types: Mapping[str, Any]) -> None:
    for name, kind in types.items():
        if not isinstance(getattr(record, name), kind):
            raise ValueError(f"'{name}' is not what poise eval writes there")


def _check_judged(one: JudgedProblem, samples: int) -> None:
    """Texts are texts, and every list has an entry of its type for every sample."""
    _check_types(
        one, {"id": str, "problem": str, "answer": str, **dict.fromkeys(SAMPLE_TYPES, list)}
    )
    for name, kind in SAMPLE_TYPES.items():
        values = getattr(one, name)
        if len(values) != samples or not all(isinstance(value, kind) for value in values):
            raise ValueError(f"'{name}' of problem '{one.id}' is not one entry a sample")


def write_order(folder: Path, headers: Sequence[ResultHeader]) -> None:
    """Models, benchmarks and settings in the order asked for; what was there before comes first."""
    known: Mapping[str, list[Any]] = read_order(folder) if (folder / ORDER_FILE).is_file() else {}
    wanted: dict[str, list[Any]] = {
        "models": [header.model for header in headers],
        "benchmarks": [header.benchmark for header in headers],
        "settings": [[header.temperature, header.top_p] for header in headers],
    }
    order = {key: _once([*known.get(key, []), *values]) for key, values in wanted.items()}
    write_json(folder / ORDER_FILE, {"schema": SCHEMA, **order})


def read_order(folder: Path) -> dict[str, list[Any]]:
    try:
        order = json.loads((folder / ORDER_FILE).read_text(encoding="utf-8"))
        return {key: list(order[key]) for key in ("models", "benchmarks", "settings")}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as fault:
        raise PoiseError(f"{folder / ORDER_FILE} cannot be read: {fault}") from fault


def is_evaluation(folder: Path) -> bool:
    return (folder / ORDER_FILE).is_file()


def read_result_files(folder: Path) -> list[ResultFile]:
    """Every file of an evaluation, complete or not, in its order."""
    order = read_order(folder)
    cells = []
    for path in sorted((folder / RESULTS_FOLDER).glob("*/*.jsonl")):
        header, done = read_result_file(path)
        cell = ResultFile(folder, header)
        cell.judged = done
        cells.append(cell)

    def place(cell: ResultFile) -> tuple[int, int, int]:
        header = cell.header
        return (
            _index(order["models"], header.model),
            _index(order["settings"], [header.temperature, header.top_p]),
            _index(order["benchmarks"], header.benchmark),
        )

    return sorted(cells, key=place)


def write_json(path: Path, value: Any) -> None:
    with _writing(path), replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _cut_off(path: Path) -> int:
    """Remove what follows the last whole line; the bytes that are left."""
    with path.open("r+b") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
    return whole


def _once(values: Sequence[Any]) -> list[Any]:
    return [value for i, value in enumerate(values) if value not in values[:i]]


def _index(order: Sequence[Any], value: Any) -> int:
    return order.index(value) if value in order else len(order)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Around a write: a fault of the disk is one line."""
    try:
        yield
    except OSError as fault:
        remedy = "free some space" if fault.errno in FULL else "mend that"
        raise PoiseError(
            f"{path} could not be written: {fault.strerror}. What was written before is whole: "
            f"{remedy}, then give the same command again"
        ) from fault
