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
SMOOTH_FROM = 24  # with more points, the moving average is drawn strongly and the values faintly
DODGE = 4  # pixels between the intervals of two runs
FAINT = 0.08


def axis_ends(runs: Sequence[ComparedRun]) -> dict[str, int]:
    """The largest value of each x axis over all runs; axes that no run has are left out."""
    costs = [cost for run in runs for cost in run.costs.values()]
    values_by_axis = {
        name: [value for cost in costs if (value := cost[name]) is not None] for name in X_AXES
    }
    return {name: max(1, *values) for name, values in values_by_axis.items() if values}


def overlay_chart(
    runs: Sequence[ComparedRun],
    lines: Sequence[RunPoints],
    ends: Mapping[str, int],
    title: str,
    axis: ValueAxis,
    *,
    height: int = 150,
) -> alt.LayerChart:
    """One line per run; a run without points has an empty one."""
    longest = max(map(len, lines))
    records = []
    for run_index, line in enumerate(lines):
        means, _ = moving_average([point["value"] for point in line])
        records += [
            {"run": run_index, **point, "mean": mean}
            for point, mean in zip(line, means, strict=True)
        ]
    y = y_axis("value", axis.axis_format, zero=axis.starts_at_zero)
    style_encodings = _style_encodings(runs)
    # Long, noisy lines: every value faintly, their moving average on top.
    if longest > SMOOTH_FROM:
        line_layers = [
            alt.Chart()
            .mark_line(strokeWidth=1)
            .encode(x=_x(), y=y, opacity=_opacity(0.25), color=style_encodings["color"]),
            alt.Chart()
            .mark_line(strokeWidth=2.25)
            .encode(x=_x(), y="mean:Q", opacity=_opacity(), **style_encodings),
        ]
    else:
        line_layers = [
            alt.Chart().mark_line().encode(x=_x(), y=y, opacity=_opacity(), **style_encodings)
        ]
    if longest <= min(MAX_DISTINCT_POINTS, SMOOTH_FROM):
        line_layers.append(_points(runs, 36).encode(x=_x(), y=y, opacity=_opacity()))
    runs_with_points = [run_index for run_index, line in enumerate(lines) if line]
    tooltip_bands = _tooltip_bands(runs, runs_with_points, axis.number_format)
    layers = [*line_layers, _cursor(), tooltip_bands, _axis_title()]
    return _layered(records, layers, runs, ends, _describe_lines(runs, lines, title), height)


def interval_chart(
    runs: Sequence[ComparedRun],
    lines: Sequence[RunPoints],
    ends: Mapping[str, int],
    title: str,
    *,
    height: int = 240,
) -> alt.LayerChart:
    """Points with intervals ("low", "high"), drawn side by side where runs coincide."""
    records = [
        {"run": run_index, **point} for run_index, line in enumerate(lines) for point in line
    ]
    y = y_axis("value", "~%", zero=False)
    layers = [_cursor()]
    for run_index, run in enumerate(runs):
        if not lines[run_index]:
            continue
        tooltip = [
            alt.Tooltip("where:N", title=" "),
            alt.Tooltip("value:Q", title=run.name, format=".1%"),
            alt.Tooltip("bounds:N", title="95 % interval"),
        ]
        mark_style: dict[str, Any] = {
            "color": f"var(--{run.style.colour})",
            # Runs at the same x are shifted sideways, so that their intervals do not overlap.
            "xOffset": DODGE * (run_index - (len(runs) - 1) / 2),
        }
        run_chart = (
            alt.Chart()
            .transform_filter(f"datum.run === {run_index}")
            .transform_calculate(where=WHERE, bounds=BOUNDS)
        )
        line = run_chart.mark_line(strokeWidth=1.5, strokeDash=run.style.dash, **mark_style)
        interval_rule = run_chart.mark_rule(strokeWidth=1.75, **mark_style)
        mean_point = run_chart.mark_point(shape=run.style.shape, size=80, **mark_style)
        layers += [
            line.encode(x=_x(), y=y, opacity=_opacity(0.65)),
            interval_rule.encode(
                x=_x(), y="low:Q", y2="high:Q", opacity=_opacity(), tooltip=tooltip
            ),
            mean_point.encode(x=_x(), y=y, opacity=_opacity(), tooltip=tooltip),
        ]
    description = _describe_lines(runs, lines, title)
    return _layered(records, [*layers, _axis_title()], runs, ends, description, height)


# -- parts ----------------------------------------------------------------------------------------

WHERE = "format(datum.at, ',') + ' ' + costs[along]"
BOUNDS = "format(datum.low, '.1%') + ' to ' + format(datum.high, '.1%')"


def _layered(
    records: Sequence[dict[str, Any]],
    layers: Sequence[alt.Chart],
    runs: Sequence[ComparedRun],
    ends: Mapping[str, int],
    description: str,
    height: int,
) -> alt.LayerChart:
    params = {
        "at": -1,
        "along": next(iter(ends)),
        "shown": [True] * len(runs),
        "ends": dict(ends),
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
        params=[alt.VariableParameter(name=name, value=value) for name, value in params.items()],
    )


def _x(field: str = "at") -> alt.X:
    scale = alt.Scale(domainMin=0, domainMax=alt.expr("ends[along]"), padding=14, nice=False)
    return alt.X(f"{field}:Q", scale=scale, axis=alt.Axis(labelExpr=PLAIN_LABEL, tickCount=5))


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


def _points(runs: Sequence[ComparedRun], size: int) -> alt.Chart:
    run_indices = list(range(len(runs)))
    shapes = alt.Scale(domain=run_indices, range=[run.style.shape for run in runs])
    return (
        alt.Chart()
        .mark_point(size=size)
        .encode(
            shape=alt.Shape("run:N", scale=shapes, legend=None),
            color=_style_encodings(runs)["color"],
        )
    )


def _opacity(opacity: float = 1.0) -> Any:
    return alt.condition("shown[datum.run]", alt.value(opacity), alt.value(FAINT))


def _cursor() -> alt.Chart:
    return (
        base_chart([{}])
        .transform_calculate(where="max(at, 0)")
        .mark_rule(style="muted", strokeWidth=1, opacity=alt.expr("at < 0 ? 0 : 1"), aria=False)
        .encode(x=_x("where"))
    )


def _tooltip_bands(
    runs: Sequence[ComparedRun], run_indices: Sequence[int], number_format: str
) -> alt.Chart:
    """Invisible bands around every x that has a point, with the values of all runs as tooltip.

    Several iterations can have the same x (iterations without an optimizer step); the last counts.
    """
    value_texts = {
        f"text{index}": f"isValid(datum.r{index}) ? format(datum.r{index}, '{number_format}') : '–'"
        for index in run_indices
    }
    return (
        alt.Chart()
        .transform_joinaggregate(latest="max(iteration)", groupby=["run", "at"])
        .transform_filter("datum.latest === datum.iteration")
        .transform_calculate(key="'r' + datum.run")
        .transform_pivot("key", value="value", groupby=["at"], op="max")
        .transform_window(before="lag(at)", after="lead(at)", sort=[alt.SortField("at")])
        .transform_calculate(
            left="isValid(datum.before) ? (datum.at + datum.before) / 2 : 0",
            right="isValid(datum.after) ? (datum.at + datum.after) / 2 : ends[along]",
            where=WHERE,
            **value_texts,
        )
        .mark_rect(opacity=0, clip=True, aria=False)
        .encode(
            x=_x("left"),
            x2="right:Q",
            tooltip=[
                alt.Tooltip("where:N", title=" "),  # a title that is no run's name
                *(alt.Tooltip(f"text{index}:N", title=runs[index].name) for index in run_indices),
            ],
        )
    )


def _axis_title() -> alt.Chart:
    """The title of the x axis, as a text mark: Vega-Lite cannot change an axis title later."""
    label = base_chart([{}]).mark_text(
        style="muted", align="right", baseline="top", fontSize=11, aria=False
    )
    return label.encode(
        x=alt.value(alt.expr("width")),
        y=alt.value(alt.expr("height + 20")),
        text=alt.value(alt.expr("costs[along]")),
    )


def _describe_lines(runs: Sequence[ComparedRun], lines: Sequence[RunPoints], title: str) -> str:
    run_ranges = [
        f"{run.name} {line[0]['value']:.3g} to {line[-1]['value']:.3g}"
        for run, line in zip(runs, lines, strict=True)
        if line
    ]
    return f"{title} of {len(run_ranges)} runs, from first to last: {'; '.join(run_ranges)}"
