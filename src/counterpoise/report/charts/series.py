"""Charts over iterations, which share the x axis, the tooltip and the cursor.

Pointing anywhere above an iteration shows its numbers and moves the cursor of every chart on the
page (the param `at`, set by page.js); clicking shows that iteration's batch in the mosaic and its
tokens in the token view.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import altair as alt

Records = Sequence[dict[str, Any]]
TooltipField = tuple[str, str, str]  # field, title, format
AxisRange = tuple[int, int] | int  # first and last iteration of an x axis; alone: the last, from 0
MAX_DISTINCT_POINTS = 60  # with more iterations, single points can no longer be distinguished
PLAIN_LABEL = "abs(datum.value) < 1000 ? datum.label : format(datum.value, '~s')"


@dataclass(frozen=True, slots=True)
class ValueAxis:
    """How the values of a chart are written and scaled.

    Example:
        ValueAxis(".1%", "%", domain=(0.0, 1.0))
    """

    number_format: str = ".3f"  # of tooltips
    axis_format: str = ""  # "" writes small numbers plainly and thousands as 1k
    domain: tuple[float, float] | None = None  # None: the range of the data
    starts_at_zero: bool = True  # used only if `domain` is None


SHARE_AXIS = ValueAxis(".1%", "%", domain=(0.0, 1.0))


# Altair validates an axis when it is created, and the charts of a page share a few axes. A chart
# copies what it is given, so none can change the axis of another.
@lru_cache(maxsize=64)
def x_axis(axis_range: AxisRange, field: str = "iteration") -> alt.X:
    first, last = axis_range if isinstance(axis_range, tuple) else (0, max(axis_range, 1))
    return alt.X(
        f"{field}:Q",
        scale=alt.Scale(domain=[first, last], padding=6, nice=False),
        # No more ticks than iterations: a tick between two would repeat a label.
        axis=alt.Axis(format="d", tickCount=min(5, last - first)),
    )


@lru_cache(maxsize=64)
def y_axis(
    field: str,
    axis_format: str = "",
    domain: tuple[float, float] | None = None,
    *,
    zero: bool = True,
) -> alt.Y:
    """A y axis over `domain`, or over the data if it is None.

    An empty format writes numbers below 1,000 plainly and thousands as 1k.
    """
    value_scale = (
        alt.Scale(domain=list(domain), nice=False) if domain else alt.Scale(zero=zero, nice=True)
    )
    axis_settings = alt.Axis(format=axis_format) if axis_format else alt.Axis(labelExpr=PLAIN_LABEL)
    return alt.Y(f"{field}:Q", scale=value_scale, axis=axis_settings)


class LayerableChart(alt.Chart):
    """A chart whose copies share its data, marks and axes.

    When charts are layered, Altair makes three deep copies of every layer, which takes a third of a
    page's time. Shallow copies are safe: Altair assigns new parts to a copy and never changes a
    part in place.
    """

    def __deepcopy__(self, memo: object) -> alt.Chart:
        return self.copy(deep=False)


def base_chart(records: Records) -> alt.Chart:
    """A chart that embeds its data and has no marks yet."""
    # A tuple, because Altair copies every record of a list whenever it copies a chart.
    return LayerableChart({"values": tuple(records)})


def stack_fields(records: Records, fields: Sequence[str]) -> list[dict[str, Any]]:
    """(iteration, field, floor, top) of fields that are stacked, the first at the bottom.

    Layers are stacked by hand, because each one needs the floor and the top of its area.

    Example:
        >>> stack_fields([{"iteration": 1, "a": 2, "b": 3}], ["a", "b"])[1]
        {'iteration': 1, 'field': 'b', 'floor': 2, 'top': 5}
    """
    areas = []
    for record in records:
        floor = 0
        for field in fields:
            top = floor + record[field]
            areas.append(
                {"iteration": record["iteration"], "field": field, "floor": floor, "top": top}
            )
            floor = top
    return areas


def area(records: Records, **style: Any) -> alt.Chart:
    """An area over the iterations; a bar if there is only one, since its area has no width."""
    if len(records) == 1:
        style.pop("interpolate", None)
        return base_chart(records).mark_bar(opacity=0.85, size=14, **style)
    return base_chart(records).mark_area(opacity=0.85, **style)


def make_tooltips(fields: Sequence[TooltipField]) -> list[alt.Tooltip]:
    return [
        alt.Tooltip(f"{field}:Q", title=title, format=number_format)
        for field, title, number_format in fields
    ]


def evaluation_marks(
    evaluations: Sequence[Mapping[str, Any]],
    x_encoding: alt.X,
    y_encoding: alt.Y,
    style: str,
    number_format: str,
    *,
    name: str = "mean",
    point_size: int = 70,
) -> list[alt.Chart]:
    """A point for the mean of every evaluation, and its interval where that is known.

    `name` is what tooltips call the mean.
    """
    records = [
        {field: evaluation[field] for field in ("iteration", "mean", "low", "high")}
        for evaluation in evaluations
    ]
    bounded = [record for record in records if record["low"] is not None]
    unbounded = [record for record in records if record["low"] is None]
    mean_fields = [("iteration", "after iteration", "d"), ("mean", name, number_format)]
    bound_fields = [("low", "95 % from", number_format), ("high", "to", number_format)]

    def points(records: Records, fields: Sequence[TooltipField]) -> alt.Chart:
        mean_point = base_chart(records).mark_point(style=style, size=point_size)
        return mean_point.encode(x=x_encoding, y=y_encoding, tooltip=make_tooltips(fields))

    marks = []
    if bounded:
        tooltip = make_tooltips([*mean_fields, *bound_fields])
        interval_rule = base_chart(bounded).mark_rule(style=style, strokeWidth=1.5)
        marks += [
            interval_rule.encode(
                x=x_encoding, y=alt.Y("low:Q"), y2=alt.Y2("high:Q"), tooltip=tooltip
            ),
            points(bounded, [*mean_fields, *bound_fields]),
        ]
    if unbounded:  # without the fields of the bounds: Vega would write null as 0
        marks.append(points(unbounded, mean_fields))
    return marks


def iteration_chart(
    below: Sequence[alt.Chart],
    records: Records,
    tooltip: Sequence[TooltipField],
    axis_range: AxisRange,
    description: str,
    *,
    above: Sequence[alt.Chart] = (),
    height: int = 132,
) -> alt.LayerChart:
    """Layer a chart over iterations, with a cursor and one tooltip per iteration.

    Invisible bands, one per iteration, show `tooltip`. Marks in `below` lie under the bands; marks
    in `above` lie over them and show tooltips of their own.
    """
    # The cursor stands at the iteration of the signal `at`, which page.js sets in all charts.
    cursor = (
        base_chart(records)
        .transform_filter("datum.iteration === at")
        .mark_rule(style="muted", strokeWidth=1, aria=False)
        .encode(x=x_axis(axis_range))
    )
    # Invisible bands, half an iteration to either side, catch the pointer between points.
    bands = (
        base_chart(records)
        .transform_calculate(left="datum.iteration - 0.5", right="datum.iteration + 0.5")
        .mark_rect(opacity=0, clip=True, aria=False)
        .encode(
            x=x_axis(axis_range, "left"),
            x2=alt.X2("right:Q"),
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
    axis_range: AxisRange,
    title: str,
    axis: ValueAxis,
    *,
    guide: float | None = None,
) -> alt.LayerChart | None:
    """A line over the iterations that have a finite value; None where there are none.

    `title` names the value in the tooltip and in the description; it is not drawn, which is left to
    the `Figure`. `guide` adds a dashed horizontal line.
    """
    finite_points = [
        (iteration, value)
        for iteration, value in points
        if value is not None and math.isfinite(value)
    ]
    records = [{"iteration": iteration, "value": value} for iteration, value in finite_points]
    if not records:
        return None
    y_encoding = y_axis("value", axis.axis_format, axis.domain, zero=axis.starts_at_zero)
    x_encoding = x_axis(axis_range)
    is_dense = len(records) > MAX_DISTINCT_POINTS
    stroke_width = 1.25 if is_dense else 1.75
    layers = [
        base_chart(records)
        .mark_line(style="series", strokeWidth=stroke_width)
        .encode(x=x_encoding, y=y_encoding)
    ]
    # With many iterations the points would merge into the line.
    if not is_dense:
        layers.append(
            base_chart(records).mark_point(style="series").encode(x=x_encoding, y=y_encoding)
        )
    if guide is not None:
        guide_rule = base_chart([{"value": guide}]).mark_rule(style="muted", strokeDash=[2, 3])
        layers.insert(0, guide_rule.encode(y=y_encoding))
    first_record, last_record = records[0], records[-1]
    description = (
        f"{title} over iterations: {first_record['value']:.3g} in iteration "
        f"{first_record['iteration']}, {last_record['value']:.3g} in iteration "
        f"{last_record['iteration']}"
    )
    tooltip = [("value", title.lower(), axis.number_format)]
    return iteration_chart(layers, records, tooltip, axis_range, description)


def moving_average(values: Sequence[float]) -> tuple[list[float], int]:
    """A centred moving average and its width: about an eighth of the run, odd, at most 25.

    Near the ends the window is shortened, so the line neither lags nor starts late.
    """
    # `| 1` makes the width odd, so that the window has a centre.
    width = min(25, max(3, len(values) // 8)) | 1
    half_width = width // 2
    windows = [
        values[max(0, center - half_width) : center + half_width + 1]
        for center in range(len(values))
    ]
    return [sum(window) / len(window) for window in windows], width
