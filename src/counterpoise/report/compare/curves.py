"""Panels of a comparison: the curves of a single run's report, with all runs in each chart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from markupsafe import Markup

from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.render import render
from counterpoise.report.charts.series import ValueAxis
from counterpoise.report.compare.compared_runs import ComparedRun, join_words
from counterpoise.report.compare.heldout import (
    HeldoutResults,
    any_graded,
    heldout_by_setting,
    same_problems,
    same_reward,
)
from counterpoise.report.compare.overlay import (
    SHARE_OF_DATA,
    SMOOTH_FROM,
    RunPoints,
    interval_chart,
    overlay_chart,
)
from counterpoise.report.panels.buffer import wasted_shares
from counterpoise.report.panels.learning import SMALL_CHARTS, MetricChart, is_uninformative
from counterpoise.report.panels.monitor import (
    SHARE_METRICS,
    SIZE_AXIS,
    SIZE_METRICS,
    choose_share_axis,
    metric_points,
)
from counterpoise.report.panels.panel import Panel
from counterpoise.report.run_data import RunData

AxisEnds = Mapping[str, int]  # the end of each x axis: {"rollouts": 768, "steps": 24, ...}
POSITIVE_SHARE_CHART = MetricChart(
    "Positive share",
    "positive_share",
    "Share of rollouts with a positive advantage among those with an advantage other than 0.",
    ValueAxis(".1%", "%"),
)
WASTED_CHART = MetricChart(
    "Wasted rollouts",
    "",
    "Share of the rollouts sampled so far that no update learns from: no signal, surplus, too "
    "old, replaced or in no plan.",
    ValueAxis(".1%", "%"),
)
SECONDS_CHART = MetricChart(
    "Time of an iteration", "iteration_seconds", "In seconds.", ValueAxis(".2f")
)
TRAINING_CHART = MetricChart(
    "Training success", "success", "", ValueAxis(".1%", "%", starts_at_zero=False)
)
REWARD_CHART = MetricChart("Training reward", "reward", "", ValueAxis(starts_at_zero=False))


def learning_panel(runs: Sequence[ComparedRun], x_ends: AxisEnds) -> Panel | None:
    if not any(run.data.metrics for run in runs):
        return None
    heldout_figures = {
        f"held-out{results.suffix}": _heldout_figure(runs, results, x_ends)
        for results in heldout_by_setting(runs)
    }
    graded = any_graded(runs)
    quantity = "reward" if graded else "success"
    training_chart = (REWARD_CHART if graded else TRAINING_CHART)._replace(
        note=_reward_warning(runs)
    )
    small_charts = [
        metric_chart for metric_chart in SMALL_CHARTS if _is_informative(runs, metric_chart.metric)
    ]
    return _panel_of_figures(
        "Learning",
        f"Training {quantity} is measured on the prompts an iteration samples, so it varies with "
        f"their difficulty. The axes of {quantity} follow the data and need not begin at 0. Values "
        "are drawn at the end of their iteration."
        + _smoothing_note(runs)
        + _unknown_steps_note(runs),
        {
            # Without evaluations the chart is listed among the absent ones.
            **(heldout_figures or {f"held-out {quantity}": None}),
            training_chart.title: _metric_figure(runs, x_ends, training_chart, wide=True),
            **{
                metric_chart.title: _metric_figure(runs, x_ends, metric_chart)
                for metric_chart in small_charts
            },
        },
    )


def batches_panel(runs: Sequence[ComparedRun], x_ends: AxisEnds) -> Panel | None:
    if not any(run.data.metrics for run in runs):
        return None
    return _panel_of_figures(
        "Batches and cost",
        "What the batches consisted of and how long they took. Times depend on the machine and on "
        "what else was running.",
        {
            POSITIVE_SHARE_CHART.title: _metric_figure(runs, x_ends, POSITIVE_SHARE_CHART),
            WASTED_CHART.title: _metric_figure(runs, x_ends, WASTED_CHART, wasted_shares),
            SECONDS_CHART.title: _metric_figure(runs, x_ends, SECONDS_CHART),
        },
    )


def cancellation_panel(runs: Sequence[ComparedRun], x_ends: AxisEnds) -> Panel | None:
    if not any(run.data.metrics for run in runs):
        return None
    figures = {
        title: _share_figure(runs, x_ends, MetricChart(title, metric, note))
        for metric, title, note in SHARE_METRICS
    }
    figures |= {
        title: _metric_figure(runs, x_ends, MetricChart(title, metric, note, SIZE_AXIS))
        for metric, title, note in SIZE_METRICS
    }
    return _panel_of_figures(
        "Cancellation",
        "How an update changed the log-probability of the tokens it was trained on, in iterations "
        "that the monitor measured. A push is what one token's gradient does to the "
        "log-probability of another through the output layer.",
        figures,
    )


def _panel_of_figures(title: str, caption: str, figures: Mapping[str, Figure | None]) -> Panel:
    """A panel of the charts that exist; a note names those that no run has values for."""
    absent_names = [chart_name.lower() for chart_name, figure in figures.items() if figure is None]
    existing_figures = tuple(figure for figure in figures.values() if figure)
    if not existing_figures:
        return Panel(title, f"No run has values for this: {join_words(absent_names)}.", Markup())
    absence_note = (
        render("comparison_absent.html", names=join_words(absent_names))
        if absent_names
        else Markup()
    )
    return Panel(title, caption, existing_figures, after=absence_note)


def _share_figure(
    runs: Sequence[ComparedRun], x_ends: AxisEnds, metric_chart: MetricChart
) -> Figure | None:
    metric = metric_chart.metric
    values = [value for run in runs for _, value in metric_points(run.data, metric)]
    metric_chart = metric_chart._replace(axis=choose_share_axis(values))
    return _metric_figure(runs, x_ends, metric_chart, partial(metric_points, metric=metric))


def _is_informative(runs: Sequence[ComparedRun], metric: str) -> bool:
    return any(not is_uninformative(run.data, metric) for run in runs if run.data.metrics)


def _smoothing_note(runs: Sequence[ComparedRun]) -> str:
    if max(len(run.data.metrics) for run in runs) <= SMOOTH_FROM:
        return ""
    return (
        " Faint lines show every iteration; strong lines are a centred mean over about an eighth "
        "of the run, at most 25 iterations."
    )


def _unknown_steps_note(runs: Sequence[ComparedRun]) -> str:
    """Name the runs that have no place on the axis of optimizer steps."""
    run_names = [run.name for run in runs if not run.knows_steps]
    return f" Optimizer steps are not known for {join_words(run_names)}." if run_names else ""


def _metric_figure(
    runs: Sequence[ComparedRun],
    x_ends: AxisEnds,
    metric_chart: MetricChart,
    points_of_run: Callable[[RunData], Sequence[tuple[int, float | None]]] | None = None,
    *,
    wide: bool = False,
) -> Figure | None:
    """A chart of one metric; None if no run has it. The note names the runs that do not.

    `points_of_run` gives the (iteration, value) pairs of a run; by default they are a column of its
    metrics.jsonl.
    """
    title, metric_name, note, axis = metric_chart
    read_points = points_of_run or (
        lambda data: [(record["iteration"], record.get(metric_name)) for record in data.metrics]
    )
    run_lines = [
        run.with_costs(
            [
                (iteration, value)
                for iteration, value in read_points(run.data)
                if value is not None and math.isfinite(value)
            ]
        )
        for run in runs
    ]
    if not any(run_lines):
        return None
    # The axis follows the data and does not extend to 100 % as in a run's own panels, so that
    # differences between runs are visible; percentages may then need decimals.
    if "%" in axis.axis_format:
        axis = replace(axis, axis_format="~%")
    chart = overlay_chart(runs, run_lines, x_ends, title, axis, height=200 if wide else 140)
    return Figure(chart, title, f"{note} {_missing_runs_note(runs, run_lines)}".strip(), wide=wide)


def _heldout_figure(
    runs: Sequence[ComparedRun], results: HeldoutResults, x_ends: AxisEnds
) -> Figure | None:
    run_lines: list[RunPoints] = []
    for run, evaluations in zip(runs, results.evaluations, strict=True):
        bounds_by_iteration = {
            evaluation["iteration"]: {"low": evaluation["low"], "high": evaluation["high"]}
            for evaluation in evaluations
        }
        means = [(evaluation["iteration"], evaluation["mean"]) for evaluation in evaluations]
        run_lines.append(
            [
                {**point, **bounds_by_iteration[point["iteration"]]}
                for point in run.with_costs(means)
            ]
        )
    if not any(run_lines):
        return None
    title = f"Held-out {results.quantity}{results.suffix}"
    axis = REWARD_CHART.axis if results.graded else SHARE_OF_DATA
    note = "With 95 % intervals, side by side where runs were evaluated at the same point. "
    if not same_problems(runs):
        note += (
            "Not all runs were evaluated on the same problems: task or evaluate.prompts differ. "
        )
    note += f"{_reward_warning(runs)} {_missing_runs_note(runs, run_lines)}"
    chart = interval_chart(runs, run_lines, x_ends, title, axis)
    return Figure(chart, title, note.strip(), wide=True)


def _reward_warning(runs: Sequence[ComparedRun]) -> str:
    warning = "Not all runs were evaluated with the same reward function: verify.name differs."
    return "" if same_reward(runs) else warning


def _missing_runs_note(runs: Sequence[ComparedRun], run_lines: Sequence[RunPoints]) -> str:
    run_names = [
        run.name for run, run_points in zip(runs, run_lines, strict=True) if not run_points
    ]
    return f"Missing in {join_words(run_names)}." if run_names else ""
