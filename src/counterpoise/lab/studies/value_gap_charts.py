"""Gaps with their intervals along an axis: what the value studies draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import altair as alt

from counterpoise.lab.studies.value_gap import gap
from counterpoise.report.charts.series import base_chart
from counterpoise.statistics.bootstrap import Interval
from counterpoise.statistics.finding import Records

SPACING = 10  # pixels between the series at one place
SIGNED = "datum.value === 0 ? '0' : format(datum.value, '+.2~f')"
BY_SIGN = {"both": "series", "positive": "positive", "negative": "negative"}
KEYS = (
    ("series", "mean of both signs"),
    ("positive", "positive rollouts"),
    ("negative", "negative rollouts"),
)


class Point(TypedDict):
    x: str
    series: str
    value: float
    low: float
    high: float


def at(x: str, series: str, found: Interval) -> Point:
    value, low, high = found
    return {"x": x, "series": series, "value": value, "low": low, "high": high}


def by_sign(x: str, records: Records) -> list[Point]:
    """The gap, and that of positive and negative rollouts alone."""
    return [
        at(x, series, gap([r for r in records if series in ("both", r["sign"])]))
        for series in BY_SIGN
    ]


def along(
    points: Sequence[Point],
    styles: Mapping[str, str],
    title: str,
    description: str,
    *,
    joined: bool = True,
) -> alt.LayerChart:
    """`styles`: series -> colour. Places are drawn evenly, in the order they come in."""
    x = alt.X(
        "x:O",
        sort=None,
        scale=alt.Scale(padding=0.5),
        axis=alt.Axis(title=title or None, labelAngle=0),
    )
    y = alt.Y("value:Q", scale=alt.Scale(nice=True), axis=alt.Axis(labelExpr=SIGNED, tickMinStep=0))
    tip = [alt.Tooltip("x:O", title=title), alt.Tooltip("series:N", title=" ")]
    tip += [alt.Tooltip(f"{name}:Q", format="+.3f") for name in ("value", "low", "high")]
    zero = base_chart([{"value": 0}]).mark_rule(style="muted", strokeDash=[2, 3]).encode(y=y)
    layers: list[alt.Chart] = [zero]
    for place, (series, style) in enumerate(styles.items()):
        shift = SPACING * (place - (len(styles) - 1) / 2)
        mine = base_chart([dict(p) for p in points if p["series"] == series])
        if joined:
            layers.append(
                mine.mark_line(style=style, xOffset=shift, strokeWidth=1, opacity=0.5).encode(
                    x=x, y=y
                )
            )
        layers += [
            mine.mark_rule(style=style, xOffset=shift, strokeWidth=1.75)
            .encode(x=x, y=alt.Y("low:Q"), y2="high:Q")
            .transform_filter("isValid(datum.low)"),
            mine.mark_point(style=style, xOffset=shift, size=44).encode(x=x, y=y, tooltip=tip),
        ]
    return alt.LayerChart(layer=layers, width="container", height=210, description=description)
