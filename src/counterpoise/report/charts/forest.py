"""Values with their intervals, a line each: what most of the studies' comparisons come to.

  whole   |--o--|
by sign             |---o---|        one mark a series, side by side within a line
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypedDict

import altair as alt

from counterpoise.report.charts.series import base_chart

SPACING = 9  # pixels between the series of one line


class ForestPoint(TypedDict):
    line: str
    series: str
    value: float
    low: float | None  # None or nan: no interval
    high: float | None
    expected: float | None  # by theory, drawn as a tick


def forest_point(
    line: str,
    series: str,
    found: tuple[float, float | None, float | None],
    expected: float | None = None,
) -> ForestPoint:
    value, low, high = found
    return {
        "line": line, "series": series, "value": value, "low": low, "high": high,
        "expected": expected,
    }  # fmt: skip


def forest_chart(
    points: Sequence[ForestPoint],
    styles: Mapping[str, str],
    title: str,
    description: str,
    *,
    number: str = ".3f",
    axis: str = "",
    zero: bool = False,
    guide: float | None = None,
    labels: int = 96,
) -> alt.LayerChart:
    """`styles`: series -> colour, in the order within a line; `guide`: a dashed line."""
    lines = list(dict.fromkeys(point["line"] for point in points))
    y = alt.Y(
        "line:N",
        sort=lines,
        axis=alt.Axis(minExtent=labels, maxExtent=labels, labelLimit=labels, grid=False),
    )
    scale = alt.Scale(zero=zero, nice=True)
    scaled = alt.Axis(
        title=title,
        format=axis,
        labelExpr="datum.value === 0 ? replace(datum.label, '+', '') : datum.label",
        grid=True,
        tickMinStep=0,
        tickCount=6,
    )
    x = alt.X("value:Q", scale=scale, axis=scaled)
    tip = [alt.Tooltip("line:N", title=" "), alt.Tooltip("series:N", title=" ")]
    tip += [alt.Tooltip(f"{name}:Q", format=number) for name in ("value", "low", "high")]
    layers: list[alt.Chart] = []
    if guide is not None:
        dashed = base_chart([{"value": guide}]).mark_rule(style="muted", strokeDash=[2, 3])
        layers.append(dashed.encode(x=x))
    for place, (series, style) in enumerate(styles.items()):
        shift = SPACING * (place - (len(styles) - 1) / 2)
        mine = [dict(p) for p in points if p["series"] == series]
        if ranges := [p for p in mine if _known(p["low"])]:
            rule = base_chart(ranges).mark_rule(style=style, yOffset=shift, strokeWidth=1.75)
            layers.append(rule.encode(x=alt.X("low:Q", scale=scale), x2="high:Q", y=y))
        if expected := [p for p in mine if _known(p["expected"])]:
            tick = base_chart(expected).mark_tick(
                style=style, yOffset=shift, size=10, thickness=2, orient="vertical"
            )
            layers.append(tick.encode(x=alt.X("expected:Q", scale=scale), y=y))
        dot = base_chart(mine).mark_point(style=style, yOffset=shift, size=44)
        layers.append(dot.encode(x=x, y=y, tooltip=tip))
    return alt.LayerChart(
        layer=layers,
        width="container",
        height=max(70, len(lines) * (16 + SPACING * len(styles))),
        description=description,
    )


def _known(value: object) -> bool:
    """A number, and not nan; Vega warns of a scale made of nothing else."""
    return isinstance(value, float | int) and math.isfinite(value)
