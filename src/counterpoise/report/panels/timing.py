"""Panel of the time: seconds of every stage over iterations, and their shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.render import render
from counterpoise.report.charts.series import (
    ValueAxis,
    area,
    iteration_chart,
    line_chart,
    stack_fields,
    x_axis,
    y_axis,
)
from counterpoise.report.panels.panel import Panel
from counterpoise.report.run_data import RunData

# (stage, what it does, colour), stacked from the bottom up; `poise serve` has the same colours
STAGES = (
    ("sample", "the policy writes responses", "series"),
    ("verify", "the reward function scores them", "green"),
    ("score", "credit, and log-probabilities before the update", "gold"),
    ("compose", "balance, and the division into optimizer steps", "violet"),
    ("update", "forward, backward and optimizer steps", "positive"),
    ("monitor", "the microscope measures what the update did", "negative"),
    ("probe", "held-out answers are sampled and followed (monitor.probe)", "soft"),
)
MAX_COLUMNS = 300  # a longer run is drawn in means over neighbouring iterations
HEIGHT = 190


def panel(run: RunData) -> Panel | None:
    stages = [
        stage
        for stage in STAGES
        if any((record.get(f"{stage[0]}_seconds") or 0) > 0 for record in run.metrics)
    ]
    if not stages:
        return None
    names = [name for name, _, _ in stages]
    columns, width = mean_columns(run.metrics, names)
    speed = line_chart(
        [(record["iteration"], record.get("tokens_per_second")) for record in run.metrics],
        run.axis_range,
        "Tokens per second",
        ValueAxis(",.0f"),
    )
    figures = [_stages_figure(run, columns, stages, width)]
    if speed is not None:
        figures.append(Figure(speed, "Sampling speed", "Tokens sampled per second.", wide=True))
    return Panel(
        "Time",
        "Where the seconds of an iteration go. Storing and held-out evaluation come on top.",
        tuple(figures),
        after=render("timing.html", stages=_stage_rows(run, stages)),
        assets=("monitor.css",),
    )


def mean_columns(
    metrics: Sequence[dict[str, Any]], names: Sequence[str]
) -> tuple[list[dict[str, Any]], int]:
    """(one record for each column of the chart, iterations that a column averages).

    A run of at most MAX_COLUMNS iterations has a column for each; a column of a longer run holds
    mean seconds over neighbouring iterations.

    Example:
        >>> mean_columns([{"iteration": 1, "sample_seconds": 2.0}], ["sample"])
        ([{'iteration': 1, 'sample': 2.0}], 1)
    """
    width = -(-len(metrics) // MAX_COLUMNS)
    columns = []
    for start in range(0, len(metrics), width):
        stretch = metrics[start : start + width]
        column: dict[str, Any] = {"iteration": stretch[len(stretch) // 2]["iteration"]}
        for name in names:
            seconds = [record.get(f"{name}_seconds") or 0.0 for record in stretch]
            column[name] = sum(seconds) / len(seconds)
        columns.append(column)
    return columns, width


def _stages_figure(
    run: RunData,
    columns: list[dict[str, Any]],
    stages: Sequence[tuple[str, str, str]],
    width: int,
) -> Figure:
    names = [name for name, _, _ in stages]
    stacked_areas = stack_fields(columns, names)
    x_encoding = x_axis(run.axis_range)
    layers = [
        area(
            [part for part in stacked_areas if part["field"] == name],
            color=f"var(--{colour})",
            interpolate="step",
        ).encode(x=x_encoding, y=y_axis("floor"), y2=alt.Y2("top:Q"))
        for name, _, colour in stages
    ]
    chart = iteration_chart(
        layers,
        columns,
        [(name, f"{name}, seconds", ".3~f") for name in names],
        run.axis_range,
        "Seconds of every stage over iterations, as stacked areas",
        height=HEIGHT,
    )
    note = "Seconds of an iteration" + (f", means of {width} iterations." if width > 1 else ".")
    keys = tuple((colour, name) for name, _, colour in stages)
    return Figure(chart, "Time by stage", note, keys, wide=True)


def _stage_rows(
    run: RunData, stages: Sequence[tuple[str, str, str]]
) -> list[tuple[str, str, float, float]]:
    """(stage, what it does, mean seconds of an iteration, share) for the table."""
    totals = {
        name: sum(record.get(f"{name}_seconds") or 0.0 for record in run.metrics)
        for name, _, _ in stages
    }
    all_seconds = sum(totals.values())
    rows = [
        (name, meaning, totals[name] / len(run.metrics), totals[name] / all_seconds)
        for name, meaning, _ in stages
    ]
    evaluation = sum(record.get("evaluate_seconds") or 0.0 for record in run.evaluations)
    if evaluation:
        mean = evaluation / len(run.evaluations)
        rows.append(("evaluation", "held-out; not a part of the iterations", mean, float("nan")))
    return rows
