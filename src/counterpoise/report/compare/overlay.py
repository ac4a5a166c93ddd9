"""Charts of one metric of several runs, along an x axis that the reader chooses.

Params of every chart, set by comparison.js:

    along    rollouts | steps | iteration      what the x axis counts
    shown    a boolean for each run            False draws the run faintly
    at       where the pointer is, in units of `along`

A record has all three costs, so a chart embeds its data once. Pointing at a place shows the values
of all runs that have a point there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from counterpoise.report.charts.series import (
    MAX_DISTINCT_POINTS,
    PLAIN_LABEL,
    LayerableChart,
    ValueAxis,
    base_chart,
    moving_average,
    y_axis,
)
from counterpoise.report.compare.compared_runs import ComparedRun

RunPoints = list[dict[str, Any]]  # {"iteration", "rollouts", "steps", "value"}, in order
X_AXES = {
    "rollouts": "rollouts sampled",
    "steps": "optimizer steps",
    "iteration": "iterations",
}
SMOOTH_FROM = 24  # with more points the values are drawn faintly and their moving average strongly
RUN_OFFSET = 4  # pixels between the intervals of two runs
SHARE_OF_DATA = ValueAxis(".1%", "~%")  # shares, over the range of the data
FADED_OPACITY = 0.08  # of a run that the reader switched off


def axis_ends(runs: Sequence[ComparedRun]) -> dict[str, int]:
    """The largest value of each x axis over all runs; axes that no run has are left out."""
    costs = [cost for run in runs for cost in run.costs.values()]
    values_by_axis = {
        axis_name: [value for cost in costs if (value := cost[axis_name]) is not None]
        for axis_name in X_AXES
    }
    return {axis_name: max(1, *values) for axis_name, values in values_by_axis.items() if values}


def axis_starts(runs: Sequence[ComparedRun]) -> dict[str, int]:
    """Where each x axis begins: that of iterations at the first of the runs, others at 0."""
    ranges = [run.data.axis_range for run in runs if run.data.metrics]
    first_iteration = min((first for first, _ in ranges), default=0)
    return {axis_name: first_iteration * (axis_name == "iteration") for axis_name in X_AXES}


def overlay_chart(
    runs: Sequence[ComparedRun],
    run_lines: Sequence[RunPoints],
    x_ends: Mapping[str, int],
    title: str,
    axis: ValueAxis,
    *,
    height: int = 150,
) -> alt.LayerChart:
    """One line per run; the entry of `run_lines` is empty for a run without points."""
    longest_line = max(map(len, run_lines))
    records = []
    for run_index, run_points in enumerate(run_lines):
        means, _ = moving_average([point["value"] for point in run_points])
        records += [
            {"run": run_index, **point, "mean": mean}
            for point, mean in zip(run_points, means, strict=True)
        ]
    y_encoding = y_axis("value", axis.axis_format, zero=axis.starts_at_zero)
    style_encodings = _style_encodings(runs)
    # Long, noisy lines: every value faintly, their moving average on top.
    if longest_line > SMOOTH_FROM:
        line_layers = [
            LayerableChart()
            .mark_line(strokeWidth=1)
            .encode(
                x=_x_encoding(),
                y=y_encoding,
                opacity=_opacity(0.25),
                color=style_encodings["color"],
            ),
            LayerableChart()
            .mark_line(strokeWidth=2.25)
            .encode(x=_x_encoding(), y=alt.Y("mean:Q"), opacity=_opacity(), **style_encodings),
        ]
    else:
        line_layers = [
            LayerableChart()
            .mark_line()
            .encode(x=_x_encoding(), y=y_encoding, opacity=_opacity(), **style_encodings)
        ]
    if longest_line <= min(MAX_DISTINCT_POINTS, SMOOTH_FROM):
        line_layers.append(
            _points(runs, 36).encode(x=_x_encoding(), y=y_encoding, opacity=_opacity())
        )
    runs_with_points = [run_index for run_index, run_points in enumerate(run_lines) if run_points]
    tooltip_bands = _tooltip_bands(runs, runs_with_points, axis.number_format)
    layers = [*line_layers, _cursor(), tooltip_bands, _axis_title()]
    return _layer_chart(
        records, layers, runs, x_ends, _describe_lines(runs, run_lines, title), height
    )


def interval_chart(
    runs: Sequence[ComparedRun],
    run_lines: Sequence[RunPoints],
    x_ends: Mapping[str, int],
    title: str,
    axis: ValueAxis = SHARE_OF_DATA,
    *,
    height: int = 240,
) -> alt.LayerChart:
    """Points with intervals ("low", "high"), drawn side by side where runs have the same x."""
    records = [
        {"run": run_index, **point}
        for run_index, run_points in enumerate(run_lines)
        for point in run_points
    ]
    y_encoding = y_axis("value", axis.axis_format, zero=False)
    number_format = axis.number_format
    bounds = INTERVAL_EXPRESSION.format(number_format=number_format)
    layers = [_cursor()]
    for run_index, run in enumerate(runs):
        if not run_lines[run_index]:
            continue
        tooltip = [
            alt.Tooltip("where:N", title=" "),
            alt.Tooltip("value:Q", title=run.name, format=number_format),
            alt.Tooltip("bounds:N", title="95 % interval"),
        ]
        mark_style: dict[str, Any] = {
            "color": f"var(--{run.style.colour})",
            # Runs at the same x are shifted sideways, so that their intervals do not overlap.
            "xOffset": RUN_OFFSET * (run_index - (len(runs) - 1) / 2),
        }
        run_chart = (
            LayerableChart()
            .transform_filter(f"datum.run === {run_index}")
            .transform_calculate(where=POSITION_EXPRESSION, bounds=bounds)
        )
        run_line = run_chart.mark_line(strokeWidth=1.5, strokeDash=run.style.dash, **mark_style)
        layers.append(run_line.encode(x=_x_encoding(), y=y_encoding, opacity=_opacity(0.65)))
        # Vega warns about a layer without any value.
        if any(point["low"] is not None for point in run_lines[run_index]):
            interval_rule = run_chart.transform_filter("isValid(datum.low)").mark_rule(
                strokeWidth=1.75, **mark_style
            )
            layers.append(
                interval_rule.encode(
                    x=_x_encoding(),
                    y=alt.Y("low:Q"),
                    y2=alt.Y2("high:Q"),
                    opacity=_opacity(),
                    tooltip=tooltip,
                )
            )
        mean_point = run_chart.mark_point(shape=run.style.shape, size=80, **mark_style)
        layers.append(
            mean_point.encode(x=_x_encoding(), y=y_encoding, opacity=_opacity(), tooltip=tooltip)
        )
    description = _describe_lines(runs, run_lines, title)
    return _layer_chart(records, [*layers, _axis_title()], runs, x_ends, description, height)


# Vega expressions: the cost at the pointer ("256 rollouts sampled"), and an interval in words.
POSITION_EXPRESSION = "format(datum.at, ',') + ' ' + costs[along]"
INTERVAL_EXPRESSION = (
    "isValid(datum.low) ? format(datum.low, '{number_format}') + ' to ' + "
    "format(datum.high, '{number_format}') : 'not known'"
)


def _layer_chart(
    records: Sequence[dict[str, Any]],
    layers: Sequence[alt.Chart],
    runs: Sequence[ComparedRun],
    x_ends: Mapping[str, int],
    description: str,
    height: int,
) -> alt.LayerChart:
    param_values = {
        "at": -1,
        "along": next(iter(x_ends)),
        "shown": [True] * len(runs),
        "starts": axis_starts(runs),
        "ends": dict(x_ends),
        "costs": X_AXES,
    }
    return alt.LayerChart(
        data={"values": list(records)},
        # `at` is the cost that the reader chose; runs that do not know it are dropped.
        transform=[
            alt.CalculateTransform(calculate="datum[along]", **{"as": "at"}),
            alt.FilterTransform(filter="isValid(datum.at)"),
        ],
        layer=list(layers),
        width="container",
        height=height,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        description=description,
        params=[
            alt.VariableParameter(name=param_name, value=value)
            for param_name, value in param_values.items()
        ],
    )


def _x_encoding(field: str = "at") -> alt.X:
    x_scale = alt.Scale(
        domainMin=alt.expr("starts[along]"),
        domainMax=alt.expr("ends[along]"),
        padding=14,
        nice=False,
    )
    return alt.X(f"{field}:Q", scale=x_scale, axis=alt.Axis(labelExpr=PLAIN_LABEL, tickCount=5))


def _style_encodings(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    """Encodings of colour and dash by run."""
    run_indices = list(range(len(runs)))
    colours = [f"var(--{run.style.colour})" for run in runs]
    dashes = [run.style.dash for run in runs]
    return {
        "color": alt.Color(
            "run:N", scale=alt.Scale(domain=run_indices, range=colours), legend=None
        ),
        "strokeDash": alt.StrokeDash(
            "run:N", scale=alt.Scale(domain=run_indices, range=dashes), legend=None
        ),
    }


def _points(runs: Sequence[ComparedRun], point_size: int) -> alt.Chart:
    run_indices = list(range(len(runs)))
    shape_scale = alt.Scale(domain=run_indices, range=[run.style.shape for run in runs])
    return (
        LayerableChart()
        .mark_point(size=point_size)
        .encode(
            shape=alt.Shape("run:N", scale=shape_scale, legend=None),
            color=_style_encodings(runs)["color"],
        )
    )


def _opacity(opacity: float = 1.0) -> alt.OpacityValue:
    # OpacityValue names the channel; from the result of alt.condition Altair infers it in 40 ms.
    is_shown: Any = {"test": "shown[datum.run]", "value": opacity}
    return alt.OpacityValue(FADED_OPACITY, condition=is_shown)


def _cursor() -> alt.Chart:
    return (
        base_chart([{}])
        .transform_calculate(where="max(at, starts[along])")
        .mark_rule(style="muted", strokeWidth=1, opacity=alt.expr("at < 0 ? 0 : 1"), aria=False)
        .encode(x=_x_encoding("where"))
    )


def _tooltip_bands(
    runs: Sequence[ComparedRun], run_indices: Sequence[int], number_format: str
) -> alt.Chart:
    """Invisible bands around every x that has a point, with the values of all runs as tooltip.

    Along optimizer steps, an iteration without one has the same x as the iteration before; the last
    iteration at an x is shown.
    """
    value_texts = {
        f"text{run_index}": (
            f"isValid(datum.r{run_index}) ? format(datum.r{run_index}, '{number_format}') : '–'"
        )
        for run_index in run_indices
    }
    return (
        LayerableChart()
        .transform_joinaggregate(latest="max(iteration)", groupby=["run", "at"])
        .transform_filter("datum.latest === datum.iteration")
        .transform_calculate(key="'r' + datum.run")
        .transform_pivot("key", value="value", groupby=["at"], op="max")
        .transform_window(before="lag(at)", after="lead(at)", sort=[alt.SortField("at")])
        .transform_calculate(
            left="isValid(datum.before) ? (datum.at + datum.before) / 2 : starts[along]",
            right="isValid(datum.after) ? (datum.at + datum.after) / 2 : ends[along]",
            where=POSITION_EXPRESSION,
            **value_texts,
        )
        .mark_rect(opacity=0, clip=True, aria=False)
        .encode(
            x=_x_encoding("left"),
            x2=alt.X2("right:Q"),
            tooltip=[
                # A blank title: the line states the position and belongs to no run.
                alt.Tooltip("where:N", title=" "),
                *(
                    alt.Tooltip(f"text{run_index}:N", title=runs[run_index].name)
                    for run_index in run_indices
                ),
            ],
        )
    )


def _axis_title() -> alt.Chart:
    """The title of the x axis, as a text mark: Vega-Lite cannot change an axis title later."""
    title_mark = base_chart([{}]).mark_text(
        style="muted", align="right", baseline="top", fontSize=11, aria=False
    )
    return title_mark.encode(
        x=alt.XValue(alt.expr("width")),
        y=alt.YValue(alt.expr("height + 20")),
        text=alt.TextValue(alt.expr("costs[along]")),
    )


def _describe_lines(runs: Sequence[ComparedRun], run_lines: Sequence[RunPoints], title: str) -> str:
    run_ranges = [
        f"{run.name} {run_points[0]['value']:.3g} to {run_points[-1]['value']:.3g}"
        for run, run_points in zip(runs, run_lines, strict=True)
        if run_points
    ]
    return f"{title} of {len(run_ranges)} runs, from first to last: {'; '.join(run_ranges)}"
