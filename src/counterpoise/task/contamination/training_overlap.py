"""Warn at the start of a run if benchmark problems are among its training prompts.

`task.benchmarks` names the files that the model will be evaluated on. The search takes about a
second for a thousand prompts, is announced before it begins, and runs once: a resumed run repeats
the warning from contamination.json. Nothing is dropped; `poise contamination --write-clean` does
that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError, first_line
from counterpoise.store.folder import CONTAMINATION, RunFolder
from counterpoise.task.contamination.copy_rules import COPIES, KINDS
from counterpoise.task.contamination.items import BenchmarkItems, from_prompts, read_benchmarks
from counterpoise.task.contamination.search import find_overlap, overlap_to_data
from counterpoise.types import Prompt

OVERLAP_PREFIX = "WARNING: "  # of the line about a benchmark


def load_benchmarks(files: Sequence[str]) -> list[BenchmarkItems]:
    """Read the files of `task.benchmarks`; called before a run writes anything."""
    # No option of a run names the field of these files.
    remedy = "rename the field to problem"
    return read_benchmarks([Path(name) for name in files], remedy=remedy) if files else []


def warn_of_overlap(
    prompts: Sequence[Prompt],
    benchmarks: Sequence[BenchmarkItems],
    folder: RunFolder,
    say: Callable[[str], None],
) -> None:
    """Search `prompts` for `benchmarks`, write contamination.json, and print warnings."""
    if not benchmarks:
        return
    stored_path = folder.path / CONTAMINATION
    if stored_path.is_file():  # a resumed run
        data = read_contamination(stored_path)
    else:
        problems = sum(len(benchmark.items) for benchmark in benchmarks)
        say(f"looking for {problems:,} benchmark problems among {len(prompts):,} training prompts")
        data = overlap_to_data(find_overlap(from_prompts(prompts), benchmarks))
        with folder.atomic_write(CONTAMINATION) as temporary:
            temporary.write_text(json.dumps(data), encoding="utf-8")
    for line in overlap_warnings(data):
        say(line)


def read_contamination(path: Path) -> dict[str, Any]:
    """Read a stored contamination.json; an error if it is damaged."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        # Both are called only because they raise an error if a key is missing.
        overlap_warnings(data)
        list(data["matches"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as fault:
        raise PoiseError(
            f"{path} is damaged: {first_line(fault)}; remove it to search again"
        ) from fault
    return dict(data)


def overlap_warnings(data: dict[str, Any]) -> list[str]:
    """One line for each benchmark with copies, and a last one with the remedy.

    Example:
        "WARNING: 27 of 40 problems of amc23 are in the training set (8 exact, 12 near, 7 reworded)"
    """
    lines = []
    for benchmark in data["benchmarks"]:
        counts = [
            f"{benchmark[kind]} {kind}" for kind in KINDS if kind in COPIES and benchmark[kind]
        ]
        if counts:
            lines.append(
                f"{OVERLAP_PREFIX}{benchmark['copied']} of {benchmark['items']} problems of "
                f"{benchmark['name']} are in the training set ({', '.join(counts)})"
            )
    if lines:
        lines.append(
            f"{data['train_copies']} of {data['train']} training prompts are copies: "
            "`poise contamination --write-clean` writes a file without them"
        )
    return lines
