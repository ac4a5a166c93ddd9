"""Panel of the benchmarks over training: one chart for each, as in the paper's Figure 8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from counterpoise.config.evaluation_settings import group_by_setting
from counterpoise.errors import format_count
from counterpoise.report.charts.series import (
    SHARE_AXIS,
    AxisRange,
    ValueAxis,
    base_chart,
    evaluation_marks,
    x_axis,
    y_axis,
)
from counterpoise.report.panels.panel import Figure, Panel
from counterpoise.report.panels.summary import headline_record
from counterpoise.report.run_data import RunData
from counterpoise.store.evaluation_records import is_graded_evaluation

STYLES = ("series", "muted")  # only the first two sampling settings are drawn


def panel(run: RunData) -> Panel | None:
    if not run.benchmarks:
        return None
    lines_by_benchmark: dict[str, list[dict[str, Any]]] = {}
    for line in run.benchmarks:
        lines_by_benchmark.setdefault(line["benchmark"], []).append(line)
    return Panel(
        "Benchmarks",
        "Evaluated on the same problems every time, with 95 % intervals over problems.",
        tuple(_benchmark_figure(lines, run.axis_range) for lines in lines_by_benchmark.values()),
    )


def _benchmark_figure(lines: Sequence[Mapping[str, Any]], axis_range: AxisRange) -> Figure:
    """Mean and interval after each evaluation, a line for each sampling setting."""
    is_graded = any(map(is_graded_evaluation, lines))
    value_axis = ValueAxis() if is_graded else SHARE_AXIS
    layers: list[alt.Chart] = []
    keys = []
    lines_by_setting = list(group_by_setting(lines).items())
    for style, (setting, setting_lines) in zip(STYLES, lines_by_setting, strict=False):
        evaluations = (
            [headline_record(line) for line in setting_lines] if is_graded else setting_lines
        )
        means = [{name: record[name] for name in ("iteration", "mean")} for record in evaluations]
        x_encoding = x_axis(axis_range)
        y_encoding = y_axis("mean", value_axis.axis_format, value_axis.domain)
        layers += [
            base_chart(means)
            .mark_line(style=style, strokeWidth=2)
            .encode(x=x_encoding, y=y_encoding),
            *evaluation_marks(
                evaluations,
                x_encoding,
                y_encoding,
                style,
                value_axis.number_format,
                point_size=40,
            ),
        ]
        keys.append((style, f"at {setting}"))
    title = lines[0]["title"]
    chart = alt.LayerChart(
        layer=layers,
        width="container",
        height=132,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        description=f"{title} over iterations",
    )
    last_line = lines[-1]
    measure = "mean reward" if is_graded else f"avg@{last_line['samples']}"
    return Figure(
        chart,
        title,
        f"{measure} over {format_count(last_line['prompts'], 'problem')}.",
        keys=tuple(keys) if len(keys) > 1 else (),
    )
