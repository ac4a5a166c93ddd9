"""Forest charts: values with their intervals, one line each, as most studies compare them.

  whole   |--o--|
by sign             |---o---|        one mark per series, side by side within a line
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

import altair as alt

from counterpoise.report.charts.series import base_chart

SPACING = 9  # pixels between the series of one line


class ForestPoint(TypedDict):
    line: str
    series: str
    value: float
    low: float | None  # None or nan: no interval
    high: float | None
    expected: float | None  # value predicted by theory, drawn as a tick


class ForestOptions(TypedDict, total=False):
    """Options of a forest chart, with their defaults."""

    number: str  # format of tooltips: ".3f"
    axis: str  # format of the axis: ""
    zero: bool  # the axis includes 0: False
    guide: float | None  # a dashed vertical line: None
    labels: int  # pixels for the names of the lines: 96


def forest_point(
    line: str,
    series: str,
    estimate: tuple[float, float | None, float | None],
    expected: float | None = None,
) -> ForestPoint:
    """A point of a forest chart; `estimate` is (value, low, high)."""
    value, low, high = estimate
    return ForestPoint(line=line, series=series, value=value, low=low, high=high, expected=expected)


def forest_chart(
    points: Sequence[ForestPoint],
    styles: Mapping[str, str],
    title: str,
    description: str,
    **options: Unpack[ForestOptions],
) -> alt.LayerChart:
    """Draw the points of every line, with their intervals and expected values.

    `styles` maps a series to its colour, in the order within a line.
    """
    labels, guide = options.get("labels", 96), options.get("guide")
    lines = list(dict.fromkeys(point["line"] for point in points))
    y = alt.Y(
        "line:N",
        sort=lines,
        axis=alt.Axis(minExtent=labels, maxExtent=labels, labelLimit=labels, grid=False),
    )
    scale = alt.Scale(zero=options.get("zero", False), nice=True)
    # A signed number format writes +0; the label of zero has no sign.
    scaled = alt.Axis(
        title=title,
        format=options.get("axis", ""),
        labelExpr="datum.value === 0 ? replace(datum.label, '+', '') : datum.label",
        grid=True,
        tickMinStep=0,
        tickCount=6,
    )
    x = alt.X("value:Q", scale=scale, axis=scaled)
    tooltip = [alt.Tooltip("line:N", title=" "), alt.Tooltip("series:N", title=" ")]
    number_format = options.get("number", ".3f")
    tooltip += [alt.Tooltip(f"{name}:Q", format=number_format) for name in ("value", "low", "high")]
    layers: list[alt.Chart] = []
    if guide is not None:
        dashed = base_chart([{"value": guide}]).mark_rule(style="muted", strokeDash=[2, 3])
        layers.append(dashed.encode(x=x))
    for series_index, (series, style) in enumerate(styles.items()):
        # The series of one line are spread around its centre.
        y_offset = SPACING * (series_index - (len(styles) - 1) / 2)
        series_points = [dict(point) for point in points if point["series"] == series]
        if ranges := [point for point in series_points if _known(point["low"])]:
            interval_rule = base_chart(ranges).mark_rule(
                style=style, yOffset=y_offset, strokeWidth=1.75
            )
            layers.append(interval_rule.encode(x=alt.X("low:Q", scale=scale), x2="high:Q", y=y))
        if expected := [point for point in series_points if _known(point["expected"])]:
            expected_tick = base_chart(expected).mark_tick(
                style=style, yOffset=y_offset, size=10, thickness=2, orient="vertical"
            )
            layers.append(expected_tick.encode(x=alt.X("expected:Q", scale=scale), y=y))
        value_dot = base_chart(series_points).mark_point(style=style, yOffset=y_offset, size=44)
        layers.append(value_dot.encode(x=x, y=y, tooltip=tooltip))
    return alt.LayerChart(
        layer=layers,
        width="container",
        height=max(70, len(lines) * (16 + SPACING * len(styles))),
        description=description,
    )


def _known(value: object) -> bool:
    """Whether the value is a finite number: Vega warns about scales that have only NaN."""
    return isinstance(value, float | int) and math.isfinite(value)
