"""What is seen at the terminal: lines with the time left, and the tables."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from made_up_results import cell
from rich.console import Console

from counterpoise.lab.evaluate import progress as watching
from counterpoise.lab.evaluate.progress import LiveEvaluationProgress
from counterpoise.lab.evaluate.summary import summarise
from counterpoise.lab.evaluate.table import print_summary


def console(width: int = 80) -> Console:
    return Console(file=StringIO(), width=width, force_terminal=False)


def said(made: Console) -> str:
    assert isinstance(made.file, StringIO)
    return made.file.getvalue()


def test_the_time_left_is_by_the_pace_of_this_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 of 100 were there; 30 more took 60 s, so the other 60 take 120."""
    clock = iter([0.0, 0.0, 60.0, 60.0, 60.0])
    monkeypatch.setattr(watching.time, "monotonic", lambda: next(clock))
    out = console()
    progress = LiveEvaluationProgress(out)
    progress.start(100, 10)
    progress.show_loading("a")
    progress.advance(cell(tmp_path, {"p1": [1, 0], "p2": [0, 0]}), 30, 600)
    progress.finish()
    assert "10 of 100 responses exist already" in said(out)
    expected = "a aime24 0.6/0.95  2/2 problems, 25.0 % right so far, 10 tok/s, 2:00 left"
    assert expected in said(out).splitlines()


def test_tables_fit_eighty_columns(tmp_path: Path) -> None:
    cells = [
        cell(tmp_path, {str(i): [float(i < right), 0.0] for i in range(10)}, model=m, benchmark=b,
             title=b.upper())
        for m, b, right in (("before", "x", 2), ("before", "y", 8), ("after", "x", 6),
                            ("after", "y", 9))
    ]  # fmt: skip
    out = console()
    print_summary(out, summarise(cells))
    text = said(out)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    lines = [line.split() for line in text.splitlines()]
    assert ["before", "10.0", "40.0", "25.0"] in lines
    assert ["after", "30.0", "45.0", "37.5"] in lines
    assert ["after", "+20.0", "+5.0", "+12.5"] in lines
    assert ["against", "before", "X", "Y", "Avg"] in lines


def test_an_average_over_an_unfinished_benchmark_has_its_star(tmp_path: Path) -> None:
    cells = [
        cell(tmp_path, {"1": [1.0]}, benchmark="x", title="X", problems=2),
        cell(tmp_path, {"1": [0.0]}, benchmark="y", title="Y"),
    ]
    out = console()
    print_summary(out, summarise(cells))
    assert ["a", "100.0*", "0.0", "50.0*"] in [line.split() for line in said(out).splitlines()]
    assert "* not finished: run the same command again to continue" in said(out)


def test_a_sweep_says_its_choice(tmp_path: Path) -> None:
    cells = [
        cell(tmp_path, {str(i): [float(i < right)] for i in range(10)}, temperature=t)
        for t, right in ((1.0, 2), (0.6, 9))
    ]
    out = console()
    print_summary(out, summarise(cells))
    assert "a: 0.6/0.95 (90.0 %), ahead of the other" in said(out)
    assert "choice: 0.6/0.95, by a" in said(out)
