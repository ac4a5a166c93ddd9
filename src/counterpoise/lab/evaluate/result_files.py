"""Result files of an evaluation: one for each (model, benchmark, sampling setting).

    OUT/evaluation.json                          the order of models, benchmarks and settings
    OUT/results/MODEL/BENCHMARK@0.6-0.95.jsonl   a header line, then one line per problem
    OUT/summary.json   OUT/report.html           made from those files at any time

The header has the settings and digests of weights and problems. The line of a problem is written
completely or not at all once the problem is judged; a partial last line left by a crash is cut off.
Running the same command again continues with the missing problems. A file that was made with other
settings is an error, so results are never mixed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from counterpoise.config.evaluation_settings import EvaluationSetting
from counterpoise.errors import PoiseError
from counterpoise.files import DISK_FULL_ERRORS, append_line, atomic_write, read_complete_lines

SCHEMA = 1
ORDER_FILE = "evaluation.json"
RESULTS_FOLDER = "results"
# Types that later computations rely on; a list has one entry of its type per sample.
HEADER_TYPES: dict[str, Any] = {
    "temperature": (int, float), "top_p": (int, float), "problems": int, "samples": int,
    "max_new_tokens": int,
    "model": str, "benchmark": str, "title": str,
}  # fmt: skip
SAMPLE_TYPES: dict[str, Any] = {
    "rewards": (int, float), "votes": (str, type(None)), "tokens": int, "finished": bool,
    "responses": str,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ResultHeader:
    """First line of a result file: everything that determines its numbers."""

    model: str  # label
    name: str  # name or path of the loaded model
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
    def setting(self) -> EvaluationSetting:
        return EvaluationSetting(self.temperature, self.top_p)

    @property
    def file(self) -> str:
        setting = f"{self.temperature:g}-{self.top_p:g}"
        return f"{RESULTS_FOLDER}/{self.model}/{self.benchmark}@{setting}.jsonl"


@dataclass(frozen=True, slots=True)
class JudgedProblem:
    """One problem and its samples; every list has one entry per sample, [G]."""

    id: str
    problem: str
    answer: str
    rewards: Sequence[float]
    votes: Sequence[str | None]  # content of the boxed answer; None: no box
    tokens: Sequence[int]  # lengths
    finished: Sequence[bool]  # False: cut off at the limit
    responses: Sequence[str]


class ResultFile:
    """One result file; `judged` grows by one problem at a time."""

    def __init__(self, folder: Path, header: ResultHeader) -> None:
        self.folder, self.header = folder, header
        self.path = folder / header.file
        self.judged: dict[str, JudgedProblem] = {}
        self._begun = False

    def open(self) -> None:
        """Read existing results without a partial last line; a different header is an error."""
        with _writing(self.path):
            self._begun = self.path.exists() and _cut_off(self.path) > 0
        if not self._begun:
            return
        header, self.judged = read_result_file(self.path)
        for field in fields(ResultHeader):
            stored_value, new_value = getattr(header, field.name), getattr(self.header, field.name)
            # The path may differ: moved weights are still recognised by their digest.
            if field.name != "name" and stored_value != new_value:
                raise PoiseError(
                    f"{self.path} was made with {field.name}={stored_value!r}, not {new_value!r}: "
                    "choose another --out, or remove the file"
                )

    def write(self, judged: JudgedProblem) -> None:
        with _writing(self.path):
            # The header is written with the first result, so a command that failed leaves no file.
            if not self._begun:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                append_line(self.path, json.dumps({"schema": SCHEMA, **asdict(self.header)}))
                self._begun = True
            append_line(self.path, json.dumps(asdict(judged), ensure_ascii=False))
        self.judged[judged.id] = judged


def read_result_file(path: Path) -> tuple[ResultHeader, dict[str, JudgedProblem]]:
    """The header, and the problems judged so far by id, in the order they were judged."""
    # On file systems without locks two commands may run at once and write the header and problems
    # twice, so repeated headers are skipped and the last result of a problem counts.
    try:
        lines = [json.loads(line) for line in read_complete_lines(path)]
        header = _parse_header(lines[0] if lines else {})
        problems = [JudgedProblem(**line) for line in lines[1:] if line != lines[0]]
        for problem in problems:
            _check_judged(problem, header.samples)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise PoiseError(f"{path} is damaged: {error}; remove it to evaluate again") from error
    return header, {problem.id: problem for problem in problems}


def read_headers(folder: Path) -> list[ResultHeader]:
    """The headers of all result files in the folder; a file without a complete line has none."""
    headers = []
    for path in sorted((folder / RESULTS_FOLDER).glob("*/*.jsonl")):
        try:
            with path.open("rb") as file:
                first_line = file.readline()
            if first_line.endswith(b"\n"):
                headers.append(_parse_header(json.loads(first_line)))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise PoiseError(f"{path} is damaged: {error}; remove it to evaluate again") from error
    return headers


def _parse_header(line: Any) -> ResultHeader:
    if not isinstance(line, Mapping) or line.get("schema") != SCHEMA:
        raise ValueError(f"its first line is not a header of schema {SCHEMA}")
    header = ResultHeader(**{field.name: line[field.name] for field in fields(ResultHeader)})
    _check_types(header, HEADER_TYPES)
    return header


def _check_types(record: ResultHeader | JudgedProblem, types: Mapping[str, Any]) -> None:
    for name, kind in types.items():
        if not isinstance(getattr(record, name), kind):
            raise ValueError(f"'{name}' does not have the type that poise eval writes")


def _check_judged(problem: JudgedProblem, samples: int) -> None:
    """Check that texts are strings and that every list has one entry of its type per sample."""
    _check_types(
        problem, {"id": str, "problem": str, "answer": str, **dict.fromkeys(SAMPLE_TYPES, list)}
    )
    for name, kind in SAMPLE_TYPES.items():
        values = getattr(problem, name)
        if len(values) != samples or not all(isinstance(value, kind) for value in values):
            raise ValueError(
                f"'{name}' of problem '{problem.id}' does not have one valid entry per sample"
            )


def write_order(folder: Path, headers: Sequence[ResultHeader]) -> None:
    """Store the order of models, benchmarks and settings; those of earlier commands come first."""
    earlier: Mapping[str, list[Any]] = read_order(folder) if (folder / ORDER_FILE).is_file() else {}
    requested: dict[str, list[Any]] = {
        "models": [header.model for header in headers],
        "benchmarks": [header.benchmark for header in headers],
        "settings": [[header.temperature, header.top_p] for header in headers],
    }
    order = {key: _once([*earlier.get(key, []), *values]) for key, values in requested.items()}
    write_json(folder / ORDER_FILE, {"schema": SCHEMA, **order})


def read_order(folder: Path) -> dict[str, list[Any]]:
    try:
        order = json.loads((folder / ORDER_FILE).read_text(encoding="utf-8"))
        return {key: list(order[key]) for key in ("models", "benchmarks", "settings")}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise PoiseError(f"{folder / ORDER_FILE} cannot be read: {error}") from error


def is_evaluation(folder: Path) -> bool:
    return (folder / ORDER_FILE).is_file()


def read_result_files(folder: Path) -> list[ResultFile]:
    """All result files of an evaluation, complete or not, in the stored order."""
    order = read_order(folder)
    result_files = []
    for path in sorted((folder / RESULTS_FOLDER).glob("*/*.jsonl")):
        header, judged = read_result_file(path)
        result_file = ResultFile(folder, header)
        result_file.judged = judged
        result_files.append(result_file)

    def position(result_file: ResultFile) -> tuple[int, int, int]:
        header = result_file.header
        return (
            _index(order["models"], header.model),
            _index(order["settings"], [header.temperature, header.top_p]),
            _index(order["benchmarks"], header.benchmark),
        )

    # Files that are not in evaluation.json come last.
    return sorted(result_files, key=position)


def write_json(path: Path, value: Any) -> None:
    with _writing(path), atomic_write(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _cut_off(path: Path) -> int:
    """Remove what follows the last complete line, and return the number of bytes left."""
    with path.open("r+b") as file:
        content = file.read()
        complete_bytes = content.rfind(b"\n") + 1
        if complete_bytes < len(content):
            file.truncate(complete_bytes)
    return complete_bytes


def _once(values: Sequence[Any]) -> list[Any]:
    return [value for position, value in enumerate(values) if value not in values[:position]]


def _index(order: Sequence[Any], value: Any) -> int:
    return order.index(value) if value in order else len(order)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn a disk error during a write into one line with a remedy."""
    try:
        yield
    except OSError as error:
        remedy = "free some space" if error.errno in DISK_FULL_ERRORS else "fix that"
        raise PoiseError(
            f"{path} could not be written: {error.strerror}. Earlier results are intact: "
            f"{remedy}, then run the same command again"
        ) from error
