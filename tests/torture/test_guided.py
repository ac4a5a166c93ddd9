"""Guided fuzzing finds what plain changes do not, equally in every call; our readers survive it."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

from fuzz import Target, write_corpus
from guided import Progress, change_input, fuzz_reader, read_input
from line_trace import LineTrace, count_lines
from readers import make_readers, write_more_files

RELEASE = Path(__file__).parents[1] / "store" / "releases" / "0.2"
# Behind every condition is another one: only inputs that passed the ones before get further.
MAZE = """
import json

def read(path):
    record = json.loads(path.read_text())
    if not isinstance(record, dict) or "kind" not in record:
        return 0
    if record["kind"] != "nested":
        return 1
    if not isinstance(record.get("rows"), list):
        return 2
    if "secret" in record:
        raise RuntimeError("found")
    return 3
"""


@pytest.fixture
def maze(tmp_path: Path) -> Target:
    (tmp_path / "maze.py").write_text(MAZE)
    specification: Any = importlib.util.spec_from_file_location("maze", tmp_path / "maze.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    (tmp_path / "input.json").write_text("{}")

    def read(path: Path) -> None:
        with contextlib.suppress(ValueError):  # no JSON
            module.read(path)

    return Target("maze", "input.json", read)


def explore(maze: Target, folder: Path) -> Progress:
    progress = Progress(folder / "guided")
    for batch in range(10):
        progress.take(fuzz_reader(maze, folder, progress, batch, 100, root=folder))
    return progress


def count_plain_faults(maze: Target, folder: Path) -> int:
    """Of 1,000 changes of the first file."""
    rng, path, trace = random.Random(0), folder / maze.file, LineTrace(folder)
    first = [path.read_bytes()]
    inputs = (
        change_input(first, path, rng, ["kind", "nested", "rows", "secret"]) for _ in range(1000)
    )
    return sum(bool(read_input(maze, path, content, trace)) for content in inputs)


def test_inputs_that_reach_new_lines_lead_to_the_fault(maze: Target, tmp_path: Path) -> None:
    guided = explore(maze, tmp_path)
    assert (guided.inputs, guided.lines) == (1000, 10)  # all lines of the reader
    assert guided.tracebacks > count_plain_faults(maze, tmp_path) == 0
    again = fuzz_reader(maze, tmp_path, Progress(tmp_path / "again"), 0, 100, root=tmp_path)
    first = Progress(tmp_path / "guided")
    assert again == fuzz_reader(maze, tmp_path, first, 0, 100, root=tmp_path)  # by its seed alone


def test_lines_of_other_packages_are_not_followed(tmp_path: Path) -> None:
    trace = LineTrace(tmp_path)
    trace.watch(lambda: shutil.copyfile(__file__, tmp_path / "copy.py"))
    assert not trace.pairs
    assert count_lines([("a.py", 0, 1), ("a.py", 3, 1), ("a.py", 1, 2)]) == 2


def test_a_short_form_for_every_reader(tmp_path: Path) -> None:
    run = shutil.copytree(RELEASE, tmp_path / "run")
    (run / "checksums.jsonl").touch()
    (run / "finished.json").write_text('{"schema": 1, "iterations": 2}')
    corpus = tmp_path / "corpus"
    write_corpus(run, corpus)
    write_more_files(corpus)
    readers = make_readers(corpus)
    assert len(readers) == 39
    for number, reader in enumerate(readers):
        progress = Progress(tmp_path / "state")
        result = fuzz_reader(reader, corpus, progress, number, 1)
        progress.take(result)
        assert not result["faults"]
        assert progress.lines >= progress.first_lines > 0, reader.label
