"""The table of a comparison: final results of every run and their cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from counterpoise.report.compare.compared_runs import ComparedRun
from counterpoise.report.compare.heldout import Evaluation, heldout_by_setting
from counterpoise.report.panels.buffer import wasted_shares
from counterpoise.report.panels.summary import format_duration, wall_seconds


class TableCell(NamedTuple):
    value: str
    small: tuple[str, ...] = ()  # lines below it


class TableLine(NamedTuple):
    """One line of the table.

    Example:
        TableLine("rollouts sampled", [TableCell("768"), None])
    """

    label: str
    cells: list[TableCell | None]  # by run; None: unknown for that run
    note: str = ""


def table_lines(runs: Sequence[ComparedRun]) -> list[TableLine]:
    """Lines for which at least one run has a value."""
    lines = []
    for heldout in heldout_by_setting(runs):
        run_indices = range(len(runs))
        name = f"held-out success{heldout.suffix}"
        first_cells = [_success(heldout.first(run_index)) for run_index in run_indices]
        lines += [
            TableLine(f"{name} at first", first_cells, "and its 95 % interval"),
            TableLine(
                f"{name} at last", [_success(heldout.last(run_index)) for run_index in run_indices]
            ),
            TableLine(
                "held-out problems",
                [_problems(heldout.first(run_index)) for run_index in run_indices],
            ),
        ]
    lines.append(TableLine("iterations", [_iterations(run) for run in runs]))
    lines += [
        TableLine(label, [make_cell(run) if run.data.metrics else None for run in runs], note)
        for label, make_cell, note in COUNT_LINES
    ]
    # A line that no run can fill is left out.
    return [line for line in lines if any(line.cells)]


def _success(e: Evaluation | None) -> TableCell | None:
    if e is None:
        return None
    when = f"after iteration {e['iteration']}" if e["iteration"] else "before training"
    return TableCell(_percent(e["mean"]), (f"{100 * e['low']:.1f} to {_percent(e['high'])}", when))


def _problems(e: Evaluation | None) -> TableCell | None:
    return TableCell(f"{e['prompts']:,}", (f"{e['samples']} responses each",)) if e else None


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\u2009%"


def _iterations(run: ComparedRun) -> TableCell:
    if run.config is None:
        origin = "made by" if run.knows_steps else "imported from"
        return TableCell(f"{len(run.data.metrics):,}", (f"{origin} {run.source}",))
    planned = run.config.loop.iterations
    return TableCell(
        f"{run.data.last_iteration:,}",
        (f"of {planned:,}",) if run.data.last_iteration < planned else (),
    )


def _sum(metric: str) -> Callable[[ComparedRun], TableCell | None]:
    """A function that sums a metric over all iterations; None for runs that do not record it."""

    def of(run: ComparedRun) -> TableCell | None:
        if any(metric not in record for record in run.data.metrics):
            return None
        return TableCell(f"{sum(record[metric] for record in run.data.metrics):,}")

    return of


def _updates(run: ComparedRun) -> TableCell | None:
    if not run.knows_steps:
        return None
    return TableCell(f"{sum(record['steps'] > 0 for record in run.data.metrics):,}")


def _wasted(run: ComparedRun) -> TableCell | None:
    shares = wasted_shares(run.data)
    return TableCell(_percent(shares[-1][1])) if shares else None


def _wall(run: ComparedRun) -> TableCell | None:
    if not any("iteration_seconds" in record for record in run.data.metrics):
        return None
    return TableCell(format_duration(wall_seconds(run.data)))


COUNT_LINES: tuple[tuple[str, Callable[[ComparedRun], TableCell | None], str], ...] = (
    ("iterations with an update", _updates, ""),
    ("optimizer steps", _sum("steps"), ""),
    ("rollouts sampled", _sum("rollouts"), ""),
    ("wasted rollouts", _wasted, "no signal, surplus, too old or replaced"),
    ("tokens sampled", _sum("rollout_tokens"), ""),
    ("wall time", _wall, "iterations and evaluations"),
)
