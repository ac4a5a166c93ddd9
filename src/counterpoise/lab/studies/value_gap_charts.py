"""Charts of the value studies: gaps with intervals along an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import altair as alt

from counterpoise.lab.studies.value_gap import value_gap
from counterpoise.report.charts.series import base_chart
from counterpoise.statistics.bootstrap import Interval
from counterpoise.statistics.finding import Records

SERIES_SPACING = 10  # pixels between series at the same x
SIGNED_LABEL = "datum.value === 0 ? '0' : format(datum.value, '+.2~f')"
SIGN_STYLES = {"both": "series", "positive": "positive", "negative": "negative"}
KEYS = (
    ("series", "mean of both signs"),
    ("positive", "positive rollouts"),
    ("negative", "negative rollouts"),
)


class GapPoint(TypedDict):
    x: str
    series: str
    value: float
    low: float
    high: float


def gap_point(x: str, series: str, interval: Interval) -> GapPoint:
    value, low, high = interval
    return {"x": x, "series": series, "value": value, "low": low, "high": high}


def gap_points_by_sign(x: str, records: Records) -> list[GapPoint]:
    """The gap of all rollouts, and of positive and negative rollouts alone."""
    return [
        gap_point(
            x,
            series,
            value_gap([record for record in records if series in ("both", record["sign"])]),
        )
        for series in SIGN_STYLES
    ]


def gap_chart(
    points: Sequence[GapPoint],
    styles: Mapping[str, str],
    title: str,
    description: str,
    *,
    joined: bool = True,
) -> alt.LayerChart:
    """Points with intervals, evenly spaced in the order given; `styles` maps series to colours."""
    x_axis = alt.X(
        "x:O",
        sort=None,
        scale=alt.Scale(padding=0.5),
        axis=alt.Axis(title=title or None, labelAngle=0),
    )
    y_axis = alt.Y(
        "value:Q", scale=alt.Scale(nice=True), axis=alt.Axis(labelExpr=SIGNED_LABEL, tickMinStep=0)
    )
    tooltip = [alt.Tooltip("x:O", title=title), alt.Tooltip("series:N", title=" ")]
    tooltip += [alt.Tooltip(f"{column}:Q", format="+.3f") for column in ("value", "low", "high")]
    zero_rule = (
        base_chart([{"value": 0}]).mark_rule(style="muted", strokeDash=[2, 3]).encode(y=y_axis)
    )
    layers: list[alt.Chart] = [zero_rule]
    for series_index, (series, style) in enumerate(styles.items()):
        x_offset = SERIES_SPACING * (series_index - (len(styles) - 1) / 2)
        series_chart = base_chart([dict(point) for point in points if point["series"] == series])
        if joined:
            layers.append(
                series_chart.mark_line(
                    style=style, xOffset=x_offset, strokeWidth=1, opacity=0.5
                ).encode(x=x_axis, y=y_axis)
            )
        layers += [
            series_chart.mark_rule(style=style, xOffset=x_offset, strokeWidth=1.75)
            .encode(x=x_axis, y=alt.Y("low:Q"), y2=alt.Y2("high:Q"))
            .transform_filter("isValid(datum.low)"),
            series_chart.mark_point(style=style, xOffset=x_offset, size=44).encode(
                x=x_axis, y=y_axis, tooltip=tooltip
            ),
        ]
    return alt.LayerChart(layer=layers, width="container", height=210, description=description)
