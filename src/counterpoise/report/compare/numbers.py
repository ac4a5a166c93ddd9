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
    small: tuple[str, ...] = ()  # lines in small print below the value


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
    for results in heldout_by_setting(runs):
        run_indices = range(len(runs))
        success_label = f"held-out {results.quantity}{results.suffix}"
        make_cell = _reward_cell if results.graded else _success_cell
        first_cells = [make_cell(results.first(run_index)) for run_index in run_indices]
        lines += [
            TableLine(f"{success_label}, first evaluation", first_cells, "and its 95 % interval"),
            TableLine(
                f"{success_label}, last evaluation",
                [make_cell(results.last(run_index)) for run_index in run_indices],
            ),
            TableLine(
                "held-out problems",
                [_problems_cell(results.first(run_index)) for run_index in run_indices],
            ),
        ]
    lines.append(TableLine("iterations", [_iterations_cell(run) for run in runs]))
    lines += [
        TableLine(label, [count_cell(run) if run.data.metrics else None for run in runs], note)
        for label, count_cell, note in COUNT_LINES
    ]
    # A line that no run can fill is left out.
    return [line for line in lines if any(line.cells)]


def _success_cell(evaluation: Evaluation | None) -> TableCell | None:
    if evaluation is None:
        return None
    return TableCell(
        _percent(evaluation["mean"]),
        (f"{100 * evaluation['low']:.1f} to {_percent(evaluation['high'])}", _moment(evaluation)),
    )


def _reward_cell(evaluation: Evaluation | None) -> TableCell | None:
    if evaluation is None:
        return None
    interval = "interval not known"
    if evaluation["low"] is not None:
        interval = f"{evaluation['low']:.3f} to {evaluation['high']:.3f}"
    return TableCell(f"{evaluation['mean']:.3f}", (interval, _moment(evaluation)))


def _moment(evaluation: Evaluation) -> str:
    iteration = evaluation["iteration"]
    return f"after iteration {iteration}" if iteration else "before training"


def _problems_cell(evaluation: Evaluation | None) -> TableCell | None:
    if evaluation is None:
        return None
    return TableCell(f"{evaluation['prompts']:,}", (f"{evaluation['samples']} responses each",))


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\u2009%"


def _iterations_cell(run: ComparedRun) -> TableCell:
    if run.config is None:
        origin = "made by" if run.knows_steps else "imported from"
        return TableCell(f"{len(run.data.metrics):,}", (f"{origin} {run.source}",))
    planned_iterations = run.config.loop.iterations
    return TableCell(
        f"{run.data.last_iteration:,}",
        (f"of {planned_iterations:,}",) if run.data.last_iteration < planned_iterations else (),
    )


def _sum_cell(metric: str) -> Callable[[ComparedRun], TableCell | None]:
    """Return a function that sums a metric of a run; None for a run that does not record it."""

    def sum_over_iterations(run: ComparedRun) -> TableCell | None:
        if any(metric not in record for record in run.data.metrics):
            return None
        return TableCell(f"{sum(record[metric] for record in run.data.metrics):,}")

    return sum_over_iterations


def _updates_cell(run: ComparedRun) -> TableCell | None:
    if not run.knows_steps:
        return None
    return TableCell(f"{sum(record.get('steps', 0) > 0 for record in run.data.metrics):,}")


def _wasted_cell(run: ComparedRun) -> TableCell | None:
    shares = wasted_shares(run.data)
    return TableCell(_percent(shares[-1][1])) if shares else None


def _wall_time_cell(run: ComparedRun) -> TableCell | None:
    if not any("iteration_seconds" in record for record in run.data.metrics):
        return None
    return TableCell(format_duration(wall_seconds(run.data)))


COUNT_LINES: tuple[tuple[str, Callable[[ComparedRun], TableCell | None], str], ...] = (
    ("iterations with an update", _updates_cell, ""),
    ("optimizer steps", _sum_cell("steps"), ""),
    ("rollouts sampled", _sum_cell("rollouts"), ""),
    ("wasted rollouts", _wasted_cell, "no signal, surplus, too old, replaced or in no plan"),
    ("tokens sampled", _sum_cell("rollout_tokens"), ""),
    ("wall time", _wall_time_cell, "iterations and evaluations"),
)
