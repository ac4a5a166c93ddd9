"""Forest charts: values with their intervals, a line for each compared item.

  whole   |--o--|
by sign             |---o---|        one mark per series, side by side within a line
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

import altair as alt

from counterpoise.report.charts.series import base_chart

SERIES_SPACING = 9  # pixels between two series within a line


class ForestPoint(TypedDict):
    line: str
    series: str
    value: float
    low: float | None  # None or nan: no interval
    high: float | None
    expected: float | None  # value predicted by theory, drawn as a tick


class ForestOptions(TypedDict, total=False):
    """Options of a forest chart; all may be left out."""

    number: str  # number format of tooltips; default ".3f"
    axis: str  # number format of the axis; default ""
    zero: bool  # whether the axis includes 0; default False
    guide: float | None  # position of a dashed vertical line; default None
    labels: int  # width in pixels of the line names; default 96


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

    `styles` maps each series to its colour; its order is the order within a line.
    """
    label_width, guide = options.get("labels", 96), options.get("guide")
    line_names = list(dict.fromkeys(point["line"] for point in points))
    y_encoding = alt.Y(
        "line:N",
        sort=line_names,
        axis=alt.Axis(
            minExtent=label_width, maxExtent=label_width, labelLimit=label_width, grid=False
        ),
    )
    value_scale = alt.Scale(zero=options.get("zero", False), nice=True)
    # A signed number format writes +0; the label of zero has no sign.
    value_axis = alt.Axis(
        title=title,
        format=options.get("axis", ""),
        labelExpr="datum.value === 0 ? replace(datum.label, '+', '') : datum.label",
        grid=True,
        tickMinStep=0,
        tickCount=6,
    )
    x_encoding = alt.X("value:Q", scale=value_scale, axis=value_axis)
    tooltip = [alt.Tooltip("line:N", title=" "), alt.Tooltip("series:N", title=" ")]
    number_format = options.get("number", ".3f")
    tooltip += [
        alt.Tooltip(f"{field_name}:Q", format=number_format)
        for field_name in ("value", "low", "high")
    ]
    layers: list[alt.Chart] = []
    if guide is not None:
        guide_rule = base_chart([{"value": guide}]).mark_rule(style="muted", strokeDash=[2, 3])
        layers.append(guide_rule.encode(x=x_encoding))
    for series_index, (series, style) in enumerate(styles.items()):
        # The series of one line are spread around its centre.
        y_offset = SERIES_SPACING * (series_index - (len(styles) - 1) / 2)
        series_points = [dict(point) for point in points if point["series"] == series]
        if interval_points := [point for point in series_points if _is_finite(point["low"])]:
            interval_rule = base_chart(interval_points).mark_rule(
                style=style, yOffset=y_offset, strokeWidth=1.75
            )
            layers.append(
                interval_rule.encode(
                    x=alt.X("low:Q", scale=value_scale), x2=alt.X2("high:Q"), y=y_encoding
                )
            )
        if expected_points := [point for point in series_points if _is_finite(point["expected"])]:
            expected_tick = base_chart(expected_points).mark_tick(
                style=style, yOffset=y_offset, size=10, thickness=2, orient="vertical"
            )
            layers.append(
                expected_tick.encode(x=alt.X("expected:Q", scale=value_scale), y=y_encoding)
            )
        value_dot = base_chart(series_points).mark_point(style=style, yOffset=y_offset, size=44)
        layers.append(value_dot.encode(x=x_encoding, y=y_encoding, tooltip=tooltip))
    return alt.LayerChart(
        layer=layers,
        width="container",
        height=max(70, len(line_names) * (16 + SERIES_SPACING * len(styles))),
        description=description,
    )


def _is_finite(value: object) -> bool:
    """Whether the value is a finite number; others are left out because Vega warns about NaN."""
    return isinstance(value, float | int) and math.isfinite(value)
