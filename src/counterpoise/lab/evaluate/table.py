"""An evaluation in the terminal: a table as the paper's, then what stands behind each number."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from counterpoise.lab.evaluate.summary import EvaluationSummary
from counterpoise.statistics.prompt_intervals import Estimate
from counterpoise.terminal import one_line

AVERAGE = "Avg"


def print_summary(console: Console, summary: EvaluationSummary) -> None:
    console.print(Group(*_parts(summary)))


def _parts(summary: EvaluationSummary) -> list[RenderableType]:
    parts: list[RenderableType] = [main_table(summary), Text(), details_table(summary), Text()]
    if summary.compared:
        parts += [differences_table(summary), Text()]
    for choice in summary.choices:
        parts.append(_name(str(choice)))
    if summary.choices:
        last = summary.choices[-1]
        parts.append(Text(f"choice: {last.best}, by the last model named", style="bold"))
    return parts


def main_table(summary: EvaluationSummary) -> Table:
    """Per cent, and the 95 % interval under it: narrow, so that six benchmarks fit."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("model")
    if summary.swept:
        table.add_column("T/top-p")
    for name in summary.benchmarks:
        table.add_column(_name(summary.titles[name]), justify="right")
    averaged = len(summary.benchmarks) > 1
    if averaged:
        table.add_column(AVERAGE, justify="right")
    for line in summary.lines:
        shown = [line.scores.get(name) for name in summary.benchmarks]
        cells = [_cell(s.average, whole=s.whole) if s else Text("-") for s in shown]
        if averaged:
            cells.append(_cell(line.average) if line.average else Text("-"))
        at = [str(line.setting)] if summary.swept else []
        table.add_row(_name(line.model), *at, *cells)
    return table


def details_table(summary: EvaluationSummary) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("model", "benchmark"):
        table.add_column(title, no_wrap=True)
    for title in ("asked", "pass@n", "maj@n", "cut off", "no box", "tokens"):
        table.add_column(title, justify="right", no_wrap=True)
    for line in summary.lines:
        for name, one in line.scores.items():
            n = one.header.samples
            at = f" {line.setting}" if summary.swept else ""
            partly = "" if one.whole else f" of {one.header.problems}"
            row = [
                f"{one.problems}{partly} x {n}",
                f"{100 * one.pass_at[n].mean:.1f}",
                f"{100 * one.maj_at[n].mean:.1f}",
                f"{100 * one.truncated:.1f} %",
                f"{100 * one.unboxed:.1f} %",
                f"{one.mean_tokens:,.0f}",
            ]
            table.add_row(_name(line.model + at), _name(name), *row)
    return table


def differences_table(summary: EvaluationSummary) -> Table:
    """Points more than the first model, problem by problem."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(_name(f"against {summary.lines[0].model}"))
    names = [*summary.benchmarks, AVERAGE] if len(summary.benchmarks) > 1 else summary.benchmarks
    for name in names:
        table.add_column(_name(summary.titles.get(name, name)), justify="right")
    for line in summary.lines:
        found = line.against | ({AVERAGE: line.against_average} if line.against_average else {})
        at = f" {line.setting}" if summary.swept else ""
        for kind, gaps in (("", found), (" pass@n", line.against_pass)):
            if gaps:
                cells = [_cell(gaps[n], sign="+") if n in gaps else Text("-") for n in names]
                table.add_row(_name(line.model + at + kind), *cells)
    return table


def _name(text: str) -> Text:
    """A model or a benchmark: its name is a path of the user's, or the name of a file."""
    return Text(one_line(text))


def _cell(found: Estimate, *, whole: bool = True, sign: str = "") -> Text:
    mean, low, high = (f"{100 * x:{sign}.1f}" for x in (found.mean, found.low, found.high))
    text = Text(mean + ("" if whole else "*"), style="bold")
    joint = " to " if sign else "–"
    return text.append(f"\n{low}{joint}{high}", style="not bold dim")
