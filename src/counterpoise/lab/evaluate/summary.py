"""All numbers of an evaluation: every benchmark, their averages, models against the first.

An average is the plain mean over benchmarks, as the paper's; it is given where every benchmark was
judged. Models are compared problem by problem: the same seeds, the same problems. Where pass@n does
not rise with avg@n, a model has become surer of what it could do, not able to do more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from counterpoise.config.evaluation_settings import Setting
from counterpoise.lab.evaluate.cells import SCHEMA, Cell, read_cells, write_json
from counterpoise.lab.evaluate.score import Score, score, solved_once
from counterpoise.lab.evaluate.sweep import Choice, choices, gap
from counterpoise.statistics.prompt_intervals import IntervalEstimate, average_estimates


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table: one model, sampled one way."""

    model: str
    setting: Setting
    scores: dict[str, Score]  # by benchmark
    average: IntervalEstimate | None  # None: a benchmark is missing
    against: dict[
        str, IntervalEstimate
    ]  # this less the first model at the same setting; by benchmark
    against_average: IntervalEstimate | None
    against_pass: dict[str, IntervalEstimate]  # the same of pass@n; where there are several samples


@dataclass(frozen=True, slots=True)
class Summary:
    benchmarks: list[str]
    titles: dict[str, str]
    lines: list[Line]
    choices: list[Choice]  # where a model was sampled in several ways

    @property
    def swept(self) -> bool:
        return bool(self.choices)

    @property
    def compared(self) -> bool:
        return any(line.against for line in self.lines)

    @property
    def whole(self) -> bool:
        return all(one.whole for line in self.lines for one in line.scores.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "scores": [s.to_json() for line in self.lines for s in line.scores.values()],
            "averages": [
                {**_key(line), **asdict(line.average)} for line in self.lines if line.average
            ],
            "against_first": [
                {**_key(line), "benchmark": name, "difference": found.mean,
                 "low": found.low, "high": found.high}
                for line in self.lines
                for name, found in _against(line).items()
            ],
            "against_first_pass_at_n": [
                {**_key(line), "benchmark": name, "difference": found.mean,
                 "low": found.low, "high": found.high}
                for line in self.lines
                for name, found in line.against_pass.items()
            ],
            "sweep": [
                {"model": c.model, **asdict(c.best), "mean": c.mean,
                 "not_told_apart": [asdict(setting) for setting in c.level()]}
                for c in self.choices
            ],
        }  # fmt: skip


def summarise(cells: Sequence[Cell]) -> Summary:
    found: dict[tuple[str, Setting], dict[str, Cell]] = {}
    for cell in cells:
        if cell.done:
            key = (cell.header.model, cell.header.setting)
            found.setdefault(key, {})[cell.header.benchmark] = cell
    names = list(dict.fromkeys(cell.header.benchmark for cell in cells))
    first = next(iter(found), ("", None))[0]
    lines = [
        _line(model, setting, group, names, found.get((first, setting)) if model != first else None)
        for (model, setting), group in found.items()
    ]
    titles = {cell.header.benchmark: cell.header.title for cell in cells}
    judged = [cell for group in found.values() for cell in group.values()]
    return Summary(names, titles, lines, choices(judged))


def write_summary(folder: Path) -> Summary:
    """summary.json from the files of results/."""
    summary = summarise(read_cells(folder))
    write_json(folder / "summary.json", summary.to_json())
    return summary


def _line(
    model: str,
    setting: Setting,
    cells: dict[str, Cell],
    names: Sequence[str],
    first: dict[str, Cell] | None,
) -> Line:
    scores = {name: made for name in names if name in cells and (made := score(cells[name]))}
    complete = len(scores) == len(names) and len(names) > 1
    against = {
        name: gap({name: cells[name]}, {name: first[name]})
        for name in scores
        if first is not None and name in first
    }
    return Line(
        model,
        setting,
        scores,
        average_estimates([s.average for s in scores.values()]) if complete else None,
        against,
        gap(cells, first) if first is not None and len(against) == len(names) > 1 else None,
        {
            name: gap({name: cells[name]}, {name: first[name]}, solved_once)
            for name in against
            if first is not None and cells[name].header.samples > 1
        },
    )


def _against(line: Line) -> dict[str, IntervalEstimate]:
    overall = {"average": line.against_average} if line.against_average else {}
    return line.against | overall


def _key(line: Line) -> dict[str, Any]:
    return {"model": line.model, **asdict(line.setting)}
