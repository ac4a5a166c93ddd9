"""Charts over iterations. All share the x axis, the tooltip and the cursor.

Pointing anywhere above an iteration shows its numbers and moves the cursor of every chart on the
page (the param `at`, set by page.js); clicking shows that iteration's batch in the mosaic and its
tokens in the token view.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

Records = Sequence[dict[str, Any]]
TooltipField = tuple[str, str, str]  # field, title, format
MAX_DISTINCT_POINTS = 60  # iterations from which points are no longer told apart
PLAIN_LABEL = "abs(datum.value) < 1000 ? datum.label : format(datum.value, '~s')"


def x_axis(last: int, field: str = "iteration") -> alt.X:
    return alt.X(
        f"{field}:Q",
        scale=alt.Scale(domain=[0, max(last, 1)], padding=6, nice=False),
        axis=alt.Axis(format="d", tickCount=min(5, max(last, 1))),  # no half iterations
    )


def y_axis(
    field: str, axis_format: str = "", domain: list[float] | None = None, *, zero: bool = True
) -> alt.Y:
    """An empty format writes counts and small numbers plainly and thousands as 1k."""
    scale = alt.Scale(domain=domain, nice=False) if domain else alt.Scale(zero=zero, nice=True)
    axis = alt.Axis(format=axis_format) if axis_format else alt.Axis(labelExpr=PLAIN_LABEL)
    return alt.Y(f"{field}:Q", scale=scale, axis=axis)


def base_chart(records: Records) -> alt.Chart:
    """Marks are added to this; the data travels in the chart."""
    return alt.Chart({"values": list(records)})


def make_tooltips(fields: Sequence[TooltipField]) -> list[alt.Tooltip]:
    return [alt.Tooltip(f"{field}:Q", title=title, format=form) for field, title, form in fields]


def iteration_chart(
    below: Sequence[alt.Chart],
    records: Records,
    tooltip: Sequence[TooltipField],
    last: int,
    description: str,
    *,
    above: Sequence[alt.Chart] = (),
    height: int = 132,
) -> alt.LayerChart:
    """Marks below, then what reacts to the pointer, then marks with tooltips of their own."""
    cursor = (
        base_chart(records)
        .transform_filter("datum.iteration === at")
        .mark_rule(style="muted", strokeWidth=1, aria=False)
        .encode(x=x_axis(last))
    )
    bands = (
        base_chart(records)
        .transform_calculate(left="datum.iteration - 0.5", right="datum.iteration + 0.5")
        .mark_rect(opacity=0, clip=True, aria=False)
        .encode(
            x=x_axis(last, "left"),
            x2="right:Q",
            tooltip=make_tooltips([("iteration", "iteration", "d"), *tooltip]),
        )
    )
    return alt.LayerChart(
        layer=[*below, cursor, bands, *above],
        width="container",
        height=height,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        description=description,
        params=[alt.VariableParameter(name="at", value=-1)],
    )


def line_chart(
    points: Sequence[tuple[int, float | None]],
    last: int,
    title: str,
    number: str,
    *,
    axis: str = "",
    domain: list[float] | None = None,
    zero: bool = True,
    guide: float | None = None,
) -> alt.LayerChart | None:
    """One number an iteration; iterations without one are passed over. None: no number at all."""
    finite = [(i, v) for i, v in points if v is not None and math.isfinite(v)]
    records = [{"iteration": i, "value": v} for i, v in finite]
    if not records:
        return None
    x, y = x_axis(last), y_axis("value", axis, domain, zero=zero)
    many = len(records) > MAX_DISTINCT_POINTS
    width = 1.25 if many else 1.75
    layers = [base_chart(records).mark_line(style="series", strokeWidth=width).encode(x=x, y=y)]
    if not many:
        layers.append(base_chart(records).mark_point(style="series").encode(x=x, y=y))
    if guide is not None:
        dashed = base_chart([{"value": guide}]).mark_rule(style="muted", strokeDash=[2, 3])
        layers.insert(0, dashed.encode(y=y))
    first, final = records[0], records[-1]
    told = (
        f"{title} over iterations: {first['value']:.3g} in iteration {first['iteration']}, "
        f"{final['value']:.3g} in iteration {final['iteration']}"
    )
    return iteration_chart(layers, records, [("value", title.lower(), number)], last, told)


def smoothed(values: Sequence[float]) -> tuple[list[float], int]:
    """A centred moving average and its width: about an eighth of the run, odd, at most 25.

    Near the ends the window is cut, so the line neither lags nor starts late.
    """
    width = min(25, max(3, len(values) // 8)) | 1
    half = width // 2
    windows = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows], width
