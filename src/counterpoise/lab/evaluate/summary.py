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
from counterpoise.lab.evaluate.result_files import SCHEMA, ResultFile, read_result_files, write_json
from counterpoise.lab.evaluate.score import BenchmarkScore, score_benchmark, solved_any
from counterpoise.lab.evaluate.sweep import SettingChoice, choose_settings, paired_difference
from counterpoise.statistics.prompt_intervals import Estimate, average


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """A row of the table: one model, sampled one way."""

    model: str
    setting: Setting
    scores: dict[str, BenchmarkScore]  # by benchmark
    average: Estimate | None  # None: a benchmark is missing
    against: dict[str, Estimate]  # this less the first model at the same setting; by benchmark
    against_average: Estimate | None
    against_pass: dict[str, Estimate]  # the same of pass@n; where there are several samples


@dataclass(frozen=True, slots=True)
class EvaluationSummary:
    benchmarks: list[str]
    titles: dict[str, str]
    lines: list[SummaryLine]
    choices: list[SettingChoice]  # where a model was sampled in several ways

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
                 "not_told_apart": [asdict(setting) for setting in c.indistinguishable()]}
                for c in self.choices
            ],
        }  # fmt: skip


def summarise(cells: Sequence[ResultFile]) -> EvaluationSummary:
    found: dict[tuple[str, Setting], dict[str, ResultFile]] = {}
    for cell in cells:
        if cell.judged:
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
    return EvaluationSummary(names, titles, lines, choose_settings(judged))


def write_summary(folder: Path) -> EvaluationSummary:
    """summary.json from the files of results/."""
    summary = summarise(read_result_files(folder))
    write_json(folder / "summary.json", summary.to_json())
    return summary


def _line(
    model: str,
    setting: Setting,
    cells: dict[str, ResultFile],
    names: Sequence[str],
    first: dict[str, ResultFile] | None,
) -> SummaryLine:
    scores = {
        name: made for name in names if name in cells and (made := score_benchmark(cells[name]))
    }
    complete = len(scores) == len(names) and len(names) > 1
    against = {
        name: paired_difference({name: cells[name]}, {name: first[name]})
        for name in scores
        if first is not None and name in first
    }
    return SummaryLine(
        model,
        setting,
        scores,
        average([s.average for s in scores.values()]) if complete else None,
        against,
        paired_difference(cells, first)
        if first is not None and len(against) == len(names) > 1
        else None,
        {
            name: paired_difference({name: cells[name]}, {name: first[name]}, solved_any)
            for name in against
            if first is not None and cells[name].header.samples > 1
        },
    )


def _against(line: SummaryLine) -> dict[str, Estimate]:
    overall = {"average": line.against_average} if line.against_average else {}
    return line.against | overall


def _key(line: SummaryLine) -> dict[str, Any]:
    return {"model": line.model, **asdict(line.setting)}
