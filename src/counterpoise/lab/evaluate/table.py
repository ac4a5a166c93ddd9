"""An evaluation in the terminal: the table of scores, then details and differences."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from counterpoise.lab.evaluate.summary import EvaluationSummary
from counterpoise.statistics.prompt_intervals import IntervalEstimate
from counterpoise.terminal import one_line

AVERAGE = "Avg"


def print_summary(console: Console, summary: EvaluationSummary) -> None:
    console.print(Group(*_parts(summary)))


def _parts(summary: EvaluationSummary) -> list[RenderableType]:
    blocks: list[RenderableType] = [main_table(summary), Text(), details_table(summary), Text()]
    if summary.has_differences:
        blocks += [differences_table(summary), Text()]
    blocks += [_name(sentence) for sentence in summary.describe_unequal_settings()]
    if not summary.is_complete:
        blocks.append(Text("* not finished: run the same command again to continue"))
    for choice in summary.choices:
        blocks.append(_name(str(choice)))
    if summary.choices:
        final_choice = summary.choices[-1]
        choice_text = one_line(f"choice: {final_choice.best}, by {final_choice.model}")
        blocks.append(Text(choice_text, style="bold"))
    return blocks


def main_table(summary: EvaluationSummary) -> Table:
    """Percentages with the 95 % interval below, narrow enough for six benchmarks.

    Graded rewards have their mean instead.
    """
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("model")
    if summary.has_sweep:
        table.add_column("T/top-p")
    for name in summary.benchmarks:
        table.add_column(_name(summary.titles[name]), justify="right")
    averaged = len(summary.benchmarks) > 1
    if averaged:
        table.add_column(AVERAGE, justify="right")
    for line in summary.lines:
        scores = [line.scores.get(name) for name in summary.benchmarks]
        cells = [
            _cell(score.average, is_complete=score.is_complete, graded=score.graded)
            if score
            else Text("-")
            for score in scores
        ]
        if averaged:
            cells.append(
                _cell(line.average, is_complete=line.is_complete, graded=summary.graded)
                if line.average
                else Text("-")
            )
        setting = [str(line.setting)] if summary.has_sweep else []
        table.add_row(_name(line.model), *setting, *cells)
    return table


def details_table(summary: EvaluationSummary) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("model", "benchmark"):
        table.add_column(title, no_wrap=True)
    shares = () if summary.graded else ("pass@n", "maj@n")
    for title in ("problems", *shares, "truncated", "no box", "tokens"):
        table.add_column(title, justify="right", no_wrap=True)
    for line in summary.lines:
        for name, score in line.scores.items():
            num_samples = score.header.samples
            setting = f" {line.setting}" if summary.has_sweep else ""
            total_note = "" if score.is_complete else f" of {score.header.problems}"
            row = [
                f"{score.problems}{total_note} x {num_samples}",
                *(
                    f"{100 * estimates[num_samples].mean:.1f}"
                    for estimates in (score.pass_at, score.maj_at)
                    if not summary.graded
                ),
                f"{100 * score.truncated:.1f} %",
                f"{100 * score.unboxed:.1f} %",
                f"{score.mean_tokens:,.0f}",
            ]
            table.add_row(_name(line.model + setting), _name(name), *row)
    return table


def differences_table(summary: EvaluationSummary) -> Table:
    """Differences to the first model in percentage points, paired by problem."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(_name(f"against {summary.lines[0].model}"))
    names = [*summary.benchmarks, AVERAGE] if len(summary.benchmarks) > 1 else summary.benchmarks
    for name in names:
        table.add_column(_name(summary.titles.get(name, name)), justify="right")
    # A second row per model compares pass@n, where several samples were drawn.
    for line in summary.lines:
        by_column = line.differences | (
            {AVERAGE: line.average_difference} if line.average_difference else {}
        )
        setting = f" {line.setting}" if summary.has_sweep else ""
        for kind, gaps in (("", by_column), (" pass@n", line.pass_differences)):
            if gaps:
                cells = [
                    _cell(gaps[name], sign="+", graded=summary.graded)
                    if name in gaps
                    else Text("-")
                    for name in names
                ]
                table.add_row(_name(line.model + setting + kind), *cells)
    return table


def _name(text: str) -> Text:
    """The name of a model or a benchmark as one line: a path may contain control characters."""
    return Text(one_line(text))


def _cell(
    estimate: IntervalEstimate, *, is_complete: bool = True, sign: str = "", graded: bool = False
) -> Text:
    bounds = (estimate.mean, estimate.low, estimate.high)
    mean, low, high = (
        f"{value:{sign}.3f}" if graded else f"{100 * value:{sign}.1f}" for value in bounds
    )
    text = Text(mean + ("" if is_complete else "*"), style="bold")
    separator = " to " if sign or graded else "–"
    interval = f"{low}{separator}{high}" if estimate.is_bounded else "not known"
    return text.append(f"\n{interval}", style="not bold dim")
