"""Panels of a comparison: the curves of a single run's report, with all runs in each chart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from markupsafe import Markup

from counterpoise.report.charts.render import render
from counterpoise.report.charts.series import ValueAxis
from counterpoise.report.compare.compared_runs import ComparedRun, join_words
from counterpoise.report.compare.heldout import (
    HeldoutResults,
    heldout_by_setting,
    same_problems,
    same_reward,
)
from counterpoise.report.compare.overlay import (
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
from counterpoise.report.panels.panel import Figure, Panel
from counterpoise.report.run_data import RunData

AxisEnds = Mapping[str, int]  # of every cost, for the axes
POSITIVE = MetricChart(
    "Positive share",
    "positive_share",
    "Share of rollouts with a positive advantage among those with an advantage other than 0.",
    ValueAxis(".1%", "%"),
)
WASTED = MetricChart(
    "Wasted rollouts",
    "",
    "Share of the rollouts sampled so far that no update learns from: no signal, surplus, too old "
    "or replaced.",
    ValueAxis(".1%", "%"),
)
SECONDS = MetricChart("Time of an iteration", "iteration_seconds", "In seconds.", ValueAxis(".2f"))
TRAINING = MetricChart(
    "Training success", "success", "", ValueAxis(".1%", "%", starts_at_zero=False)
)


def learning_panel(runs: Sequence[ComparedRun], ends: AxisEnds) -> Panel | None:
    if not any(run.data.metrics for run in runs):
        return None
    heldout = {
        f"held-out{results.suffix}": _heldout(runs, results, ends)
        for results in heldout_by_setting(runs)
    }
    training = TRAINING._replace(note=_reward_warning(runs))
    small = [chart for chart in SMALL_CHARTS if _is_informative(runs, chart.metric)]
    return _panel(
        "Learning",
        "Training success is measured on the prompts an iteration samples, so it varies with their "
        "difficulty. The axes of success follow the data and need not begin at 0. Values are drawn "
        "at the end of their iteration." + _smoothing(runs) + _without_steps(runs),
        {
            # Without evaluations the chart is listed among the absent ones.
            **(heldout or {"held-out success": None}),
            TRAINING.title: _figure(runs, ends, training, wide=True),
            **{chart.title: _figure(runs, ends, chart) for chart in small},
        },
    )


def batches_panel(runs: Sequence[ComparedRun], ends: AxisEnds) -> Panel | None:
    if not any(run.data.metrics for run in runs):
        return None
    return _panel(
        "Batches and cost",
        "What the batches consisted of and how long they took. Times depend on the machine and on "
        "what else was running.",
        {
            POSITIVE.title: _figure(runs, ends, POSITIVE),
            WASTED.title: _figure(runs, ends, WASTED, wasted_shares),
            SECONDS.title: _figure(runs, ends, SECONDS),
        },
    )


def cancellation_panel(runs: Sequence[ComparedRun], ends: AxisEnds) -> Panel | None:
    if not any(run.data.metrics for run in runs):
        return None
    figures = {
        title: _share(runs, ends, MetricChart(title, metric, note))
        for metric, title, note in SHARE_METRICS
    }
    figures |= {
        title: _figure(runs, ends, MetricChart(title, metric, note, SIZE_AXIS))
        for metric, title, note in SIZE_METRICS
    }
    return _panel(
        "Cancellation",
        "How an update changed the log-probability of the tokens it was trained on, in iterations "
        "that the monitor measured. A push is what one token's gradient does to the "
        "log-probability of another through the output layer.",
        figures,
    )


def _panel(title: str, caption: str, figures: Mapping[str, Figure | None]) -> Panel:
    """A panel of the charts that exist, with the names of those that no run has values for."""
    absent = [name.lower() for name, figure in figures.items() if figure is None]
    charts = tuple(figure for figure in figures.values() if figure)
    if not charts:
        return Panel(title, f"No run has values for this: {join_words(absent)}.", Markup())
    absence_note = (
        render("comparison_absent.html", names=join_words(absent)) if absent else Markup()
    )
    return Panel(title, caption, charts, after=absence_note)


def _share(runs: Sequence[ComparedRun], ends: AxisEnds, metric_chart: MetricChart) -> Figure | None:
    metric = metric_chart.metric
    values = [value for run in runs for _, value in metric_points(run.data, metric)]
    metric_chart = metric_chart._replace(axis=choose_share_axis(values))
    return _figure(runs, ends, metric_chart, partial(metric_points, metric=metric))


def _is_informative(runs: Sequence[ComparedRun], metric: str) -> bool:
    return any(not is_uninformative(run.data, metric) for run in runs if run.data.metrics)


def _smoothing(runs: Sequence[ComparedRun]) -> str:
    if max(len(run.data.metrics) for run in runs) <= SMOOTH_FROM:
        return ""
    return (
        " Faint: every iteration; strong: a centred mean over about an eighth of the run, at most "
        "25 iterations."
    )


def _without_steps(runs: Sequence[ComparedRun]) -> str:
    """Name the imported runs, which have no optimizer steps to be drawn along."""
    names = [run.name for run in runs if not run.knows_steps]
    return f" Optimizer steps are not known for {join_words(names)}." if names else ""


def _figure(
    runs: Sequence[ComparedRun],
    ends: AxisEnds,
    metric_chart: MetricChart,
    points: Callable[[RunData], Sequence[tuple[int, float | None]]] | None = None,
    *,
    wide: bool = False,
) -> Figure | None:
    """A chart of one metric; None where no run has it. Runs without it are named in the note."""
    title, metric, note, axis = metric_chart
    read_points = points or (
        lambda data: [(record["iteration"], record.get(metric)) for record in data.metrics]
    )
    lines = [
        run.with_costs(
            [
                (iteration, value)
                for iteration, value in read_points(run.data)
                if value is not None and math.isfinite(value)
            ]
        )
        for run in runs
    ]
    if not any(lines):
        return None
    # The axis follows the data and does not extend to 100 % as in a run's own panels, so that
    # differences between runs are visible; percentages may then need decimals.
    if "%" in axis.axis_format:
        axis = replace(axis, axis_format="~%")
    chart = overlay_chart(runs, lines, ends, title, axis, height=200 if wide else 140)
    return Figure(chart, title, f"{note} {_without(runs, lines)}".strip(), wide=wide)


def _heldout(runs: Sequence[ComparedRun], results: HeldoutResults, ends: AxisEnds) -> Figure | None:
    lines: list[RunPoints] = []
    for run, evaluations in zip(runs, results.evaluations, strict=True):
        bounds = {
            evaluation["iteration"]: {"low": evaluation["low"], "high": evaluation["high"]}
            for evaluation in evaluations
        }
        means = [(evaluation["iteration"], evaluation["mean"]) for evaluation in evaluations]
        lines.append([{**point, **bounds[point["iteration"]]} for point in run.with_costs(means)])
    if not any(lines):
        return None
    title = f"Held-out success{results.suffix}"
    note = "With 95 % intervals, drawn side by side where runs coincide. "
    if not same_problems(runs):
        note += (
            "Not all runs were evaluated on the same problems: task or evaluate.prompts differ. "
        )
    note += f"{_reward_warning(runs)} {_without(runs, lines)}"
    return Figure(interval_chart(runs, lines, ends, title), title, note.strip(), wide=True)


def _reward_warning(runs: Sequence[ComparedRun]) -> str:
    warning = "Not all runs were evaluated with the same reward function: verify.name differs."
    return "" if same_reward(runs) else warning


def _without(runs: Sequence[ComparedRun], lines: Sequence[RunPoints]) -> str:
    names = [run.name for run, line in zip(runs, lines, strict=True) if not line]
    return f"Missing in {join_words(names)}." if names else ""
