"""The benchmarks by name, read from a folder of files or from the Hugging Face hub.

The small ones (AIME24, AIME25, AMC) use avg@32, the others pass@1, as in the paper's Appendix B.
Files are read like training data (task/columns.py). A name that is not in the table stands for a
file in the folder, NAME.jsonl, .json or .parquet, sampled once per problem. A hub dataset may have
other column names, several answers (the first counts) or a worked solution that ends in "#### 18"
(GSM8K).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoise.errors import PoiseError, unknown_name
from counterpoise.model.templates import AUTO
from counterpoise.seeds import seed_for
from counterpoise.task import files_task, hub
from counterpoise.task.columns import (
    ChosenColumns,
    FieldOptions,
    check_needed_columns,
    final_answer,
    to_prompt,
)
from counterpoise.task.read_files import SUFFIXES, Record, to_json_value
from counterpoise.types import ALL_COLUMNS, Prompt

if TYPE_CHECKING:
    import torch

ROLES = ("problem", "answer", "id")
ROWS_CPU, ROWS_CUDA = 256, 1024  # responses that are sampled together


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Where a benchmark is found and how it is sampled.

    Example:
        BENCHMARKS["aime24"].samples == 32
    """

    name: str
    title: str  # as in the paper's tables
    file: str
    hub: str = ""  # dataset[:configuration]
    split: str = "test"
    samples: int = 1  # avg@samples; 1 is pass@1
    template: str = "qwen-math"
    problem: str = "problem"  # column names of the hub dataset
    answer: str = "answer"


_TABLE = (
    Benchmark("aime24", "AIME24", "aime24.jsonl", "HuggingFaceH4/aime_2024", "train", 32),
    Benchmark("aime25", "AIME25", "aime25.jsonl", "math-ai/aime25", samples=32),
    Benchmark("amc23", "AMC", "amc23.jsonl", "math-ai/amc23", samples=32, problem="question"),
    Benchmark("olympiadbench", "Olympiad", "olympiadbench.jsonl",
              "Hothan/OlympiadBench:OE_TO_maths_en_COMP", "train",
              problem="question", answer="final_answer"),
    Benchmark("minerva", "Minerva", "minerva.jsonl", "math-ai/minervamath", problem="question"),
    Benchmark("math500", "Math", "math500.jsonl", "HuggingFaceH4/MATH-500"),
    Benchmark("gsm8k", "GSM8K", "gsm8k_test.jsonl", "openai/gsm8k:main",
              template=AUTO, problem="question"),
    Benchmark("amc83", "AMC 12", "amc83.jsonl", samples=32),
    Benchmark("math", "MATH", "math_test.jsonl"),
)  # fmt: skip
BENCHMARKS = {benchmark.name: benchmark for benchmark in _TABLE}


def find_benchmark(name: str, data: Path | None, data_option: str = "--data") -> Benchmark:
    """Find a benchmark in the table, or a file NAME.jsonl, NAME.json or NAME.parquet in `data`.

    `data_option` is what error messages call the option that names the folder.
    """
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    if data is not None and "/" not in name and (file := find_file(name, data)):
        return Benchmark(name, name, file.name, template=AUTO)
    if data is not None and not data.is_dir():
        raise PoiseError(f"{data_option} {data}: no such folder")
    # The error suggests a benchmark of the table by its name, not by its file's name.
    stems = {Path(benchmark.file).stem for benchmark in _TABLE}
    local_names = [file.stem for file in list_files(data) if file.stem not in stems]
    error = unknown_name("benchmark", name, [*BENCHMARKS, *local_names])
    raise PoiseError(
        f"{error}; with {data_option}, any NAME.jsonl, .json or .parquet in the folder"
    )


def load_problems(
    benchmark: Benchmark,
    data: Path | None,
    fields: Mapping[str, str] | None = None,
    needed_columns: tuple[str, ...] = (),
    *,
    answers_required: bool = True,
    data_option: str = "--data",
    field_remedy: str = "name it with --fields {role}=NAME",
) -> list[Prompt]:
    """Load the problems in the order of the file.

    `fields` maps "problem", "answer" or "id" to the name of the column that holds it in a file of
    `data`; without `data` the hub is read, whose column names are in the table. `needed_columns`
    lists the columns that the user's reward function needs.
    """
    if data is None:
        return load_from_hub(benchmark, needed_columns, data_option)
    path = find_file(Path(benchmark.file).stem, data)
    if path is None:
        file_names = [file.name for file in list_files(data)]
        raise PoiseError(
            f"{benchmark.name}: no file {benchmark.file} in {data}"
            + (f" (its files: {', '.join(file_names[:12])})" if file_names else "")
            + f"; {data_option} must be a folder of JSON lines, JSON or parquet; without it the "
            "hub is used"
        )
    field_names = FieldOptions(
        **(fields or {}),
        needed_columns=needed_columns,
        remedy=field_remedy,
        answers_required=answers_required,
    )
    return files_task.read_problems(str(path), field_names)


def list_files(data: Path | None) -> list[Path]:
    """The data files of a folder, by name."""
    if data is None or not data.is_dir():
        return []
    return sorted(file for file in data.iterdir() if file.suffix in SUFFIXES)


def find_file(stem: str, data: Path) -> Path | None:
    """The file STEM.jsonl, STEM.json or STEM.parquet of a folder; None if there is none."""
    candidates = [data / f"{stem}{suffix}" for suffix in SUFFIXES]
    return next((file for file in candidates if file.is_file()), None)


def load_from_hub(
    benchmark: Benchmark, needed_columns: tuple[str, ...] = (), data_option: str = "--data"
) -> list[Prompt]:
    if not benchmark.hub:
        raise PoiseError(
            f"{benchmark.name} is not on the hub: give {data_option}, a folder that holds "
            f"{benchmark.file}"
        )
    try:
        rows = hub.open_split(benchmark.hub, benchmark.split)
    except PoiseError as error:
        reason = str(error).partition("; check task.path")[0]
        raise PoiseError(
            f"{benchmark.name}: {reason}; or give {data_option}, a folder that holds "
            f"{benchmark.file}"
        ) from error
    prompts = []
    for index, row in enumerate(rows):
        if missing := [
            column for column in (benchmark.problem, benchmark.answer) if column not in row
        ]:
            raise PoiseError(
                f"{benchmark.hub}: no column '{missing[0]}' (columns: {', '.join(row)}): the "
                f"dataset has changed; give {data_option}, a folder of JSON lines"
            )
        where = f"{benchmark.hub} [{benchmark.split}] row {index}"
        problem_id = f"{benchmark.name}-{index}"
        values = {
            "id": problem_id,
            "problem": row[benchmark.problem],
            "answer": final_answer(row[benchmark.answer]),
        }
        check_needed_columns(needed_columns, row, benchmark.hub)
        record = Record(where, problem_id, values)
        prompts.append(to_prompt(record, ChosenColumns(), columns=to_json_value(row)))
    if not prompts:
        raise PoiseError(f"{benchmark.hub}: no rows in its split '{benchmark.split}'")
    return prompts


def benchmark_seeds(seed: int, benchmark: str, prompt: Prompt, samples: int) -> list[int]:
    """One seed for each sample of a problem; the same in `poise eval` and during training."""
    return [seed_for(seed, f"eval/{benchmark}/{prompt.id}", 0, sample) for sample in range(samples)]


def default_rows(device: torch.device) -> int:
    """How many responses are sampled together, unless `poise eval --rows` says otherwise."""
    return ROWS_CUDA if device.type == "cuda" else ROWS_CPU


def digest_problems(problems: Sequence[Prompt], needed_columns: Sequence[str] = ()) -> str:
    """Twelve hex digits that change with any id, text, answer, message or needed column."""
    hasher = blake2b(digest_size=6)
    for prompt in problems:
        hasher.update("\x00".join((prompt.id, prompt.problem, prompt.answer, "")).encode())
        if needed_columns:
            names = prompt.columns if ALL_COLUMNS in needed_columns else needed_columns
            columns = {name: prompt.columns.get(name) for name in names}
            hasher.update(repr(sorted(columns.items())).encode())
        if prompt.messages:
            hasher.update(repr(prompt.messages).encode())
    return hasher.hexdigest()
