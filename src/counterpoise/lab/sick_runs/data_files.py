"""Data files of planted runs: the embedded model's word problems, with one fault or none.

Each function writes its files to `folder` and returns the options that name them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from counterpoise.task.word_problems import make_problem

Problem = dict[str, Any]
LEVEL = (3,)
NUM_PROBLEMS = 240
NUM_HELDOUT = 64
COPIES = 10  # of each problem in a file of duplicates
LEAK_EVERY = 6  # one problem in this many is in the benchmark


def write_problems(folder: Path, seed: int) -> list[str]:
    """Healthy problems."""
    return _write_task(folder, _problems("train", NUM_PROBLEMS, seed), seed)


def write_fractions(folder: Path, seed: int) -> list[str]:
    r"""Every second reference is written as a fraction: 11 as \frac{22}{2}."""
    problems = _problems("train", NUM_PROBLEMS, seed)
    for problem in problems[::2]:
        problem["answer"] = f"\\frac{{{2 * int(problem['answer'])}}}{{2}}"
    return _write_task(folder, problems, seed)


def write_duplicates(folder: Path, seed: int) -> list[str]:
    """The same few problems again and again, under ids of their own."""
    few_problems = _problems("train", NUM_PROBLEMS // COPIES, seed)
    return _write_task(
        folder,
        [
            {**problem, "id": f"{problem['id']}-{copy}"}
            for copy in range(COPIES)
            for problem in few_problems
        ],
        seed,
    )


def write_benchmark(folder: Path, seed: int, *, leak: bool) -> list[str]:
    """Healthy problems and a benchmark file; with `leak`, part of it is trained on."""
    problems = _problems("train", NUM_PROBLEMS, seed)
    others = _problems("heldout", 2 * NUM_HELDOUT, seed)[NUM_HELDOUT:]
    benchmark = problems[::LEAK_EVERY] + others if leak else others
    options = _write_task(folder, problems, seed)
    benchmark_file = _write_lines(folder / "benchmark.jsonl", benchmark)
    return [*options, f"task.benchmarks={json.dumps([str(benchmark_file)])}"]


def _problems(split: str, count: int, seed: int) -> list[Problem]:
    prompts = (make_problem(split, index, LEVEL, seed) for index in range(count))
    return [
        {"id": f"{split}-{index}", "problem": prompt.problem, "answer": prompt.answer}
        for index, prompt in enumerate(prompts)
    ]


def _write_task(folder: Path, train: Sequence[Problem], seed: int) -> list[str]:
    heldout = _problems("heldout", NUM_HELDOUT, seed)
    train_file = _write_lines(folder / "train.jsonl", train)
    heldout_file = _write_lines(folder / "heldout.jsonl", heldout)
    return [
        "task.name=files",
        f"task.path={json.dumps(str(train_file))}",
        f"task.heldout_path={json.dumps(str(heldout_file))}",
    ]


def _write_lines(file: Path, problems: Sequence[Problem]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(problem) + "\n" for problem in problems)
    file.write_text(text, encoding="utf-8")
    return file.resolve()
