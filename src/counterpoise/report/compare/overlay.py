"""One number of several runs in one chart. What lies along x is the reader's choice.

    along    rollouts | steps | iteration      a param of every chart, set by comparison.js
    shown    a truth value for each run        one that is not shown is only faint
    at       where the pointer is, on the scale of `along`

A record has all three costs, so a chart needs its data once. Pointing shows the numbers of every
run that has a point there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from counterpoise.report.charts.series import (
    MAX_DISTINCT_POINTS,
    PLAIN_LABEL,
    base_chart,
    smoothed,
    y_axis,
)
from counterpoise.report.compare.compared_runs import ComparedRun

RunPoints = list[dict[str, Any]]  # {"iteration", "rollouts", "steps", "value"}, in order
X_AXES = {
    "rollouts": "rollouts sampled",
    "steps": "optimizer steps",
    "iteration": "iterations",
}
SMOOTH_FROM = 24  # points from which a line is drawn as its moving average, and itself faintly
DODGE = 4  # pixels between the intervals of two runs
FAINT = 0.08


def axis_ends(compared: Sequence[ComparedRun]) -> dict[str, int]:
    """The last value along each cost that some run tells; one nobody tells is left out."""
    costs = [cost for one in compared for cost in one.costs.values()]
    found = {name: [at for cost in costs if (at := cost[name]) is not None] for name in X_AXES}
    return {name: max(1, *values) for name, values in found.items() if values}


def overlay_chart(
    compared: Sequence[ComparedRun],
    lines: Sequence[RunPoints],
    last: Mapping[str, int],
    title: str,
    number: str,
    *,
    axis: str = "",
    zero: bool = True,
    height: int = 150,
) -> alt.LayerChart:
    """A line a run; runs without a point have an empty one."""
    longest = max(map(len, lines))
    records = []
    for place, line in enumerate(lines):
        means, _ = smoothed([point["value"] for point in line])
        records += [
            {"run": place, **point, "mean": mean} for point, mean in zip(line, means, strict=True)
        ]
    y = y_axis("value", axis, zero=zero)
    looks = _looks(compared)
    if longest > SMOOTH_FROM:
        below = [
            alt.Chart()
            .mark_line(strokeWidth=1)
            .encode(x=_x(), y=y, opacity=_shown(0.25), color=looks["color"]),
            alt.Chart()
            .mark_line(strokeWidth=2.25)
            .encode(x=_x(), y="mean:Q", opacity=_shown(), **looks),
        ]
    else:
        below = [alt.Chart().mark_line().encode(x=_x(), y=y, opacity=_shown(), **looks)]
    if longest <= min(MAX_DISTINCT_POINTS, SMOOTH_FROM):
        below.append(_points(compared, 36).encode(x=_x(), y=y, opacity=_shown()))
    known = [place for place, line in enumerate(lines) if line]
    layers = [*below, _cursor(), _told(compared, known, number), _axis_title()]
    return _layered(records, layers, compared, last, _described(compared, lines, title), height)


def interval_chart(
    compared: Sequence[ComparedRun],
    lines: Sequence[RunPoints],
    last: Mapping[str, int],
    title: str,
    *,
    height: int = 240,
) -> alt.LayerChart:
    """Records with "low" and "high": intervals stand side by side where runs share a place."""
    records = [{"run": place, **point} for place, line in enumerate(lines) for point in line]
    y = y_axis("value", "~%", zero=False)
    layers = [_cursor()]
    for place, one in enumerate(compared):
        if not lines[place]:
            continue
        tooltip = [
            alt.Tooltip("where:N", title=" "),
            alt.Tooltip("value:Q", title=one.name, format=".1%"),
            alt.Tooltip("bounds:N", title="95 % interval"),
        ]
        look: dict[str, Any] = {
            "color": f"var(--{one.look.colour})",
            "xOffset": DODGE * (place - (len(compared) - 1) / 2),
        }
        mine = (
            alt.Chart()
            .transform_filter(f"datum.run === {place}")
            .transform_calculate(where=WHERE, bounds=BOUNDS)
        )
        line = mine.mark_line(strokeWidth=1.5, strokeDash=one.look.dash, **look)
        rule = mine.mark_rule(strokeWidth=1.75, **look)
        dot = mine.mark_point(shape=one.look.shape, size=80, **look)
        layers += [
            line.encode(x=_x(), y=y, opacity=_shown(0.65)),
            rule.encode(x=_x(), y="low:Q", y2="high:Q", opacity=_shown(), tooltip=tooltip),
            dot.encode(x=_x(), y=y, opacity=_shown(), tooltip=tooltip),
        ]
    return _layered(
        records, [*layers, _axis_title()], compared, last,
        _described(compared, lines, title), height,
    )  # fmt: skip


# -- parts ----------------------------------------------------------------------------------------

WHERE = "format(datum.at, ',') + ' ' + costs[along]"
BOUNDS = "format(datum.low, '.1%') + ' to ' + format(datum.high, '.1%')"


def _layered(
    records: Sequence[dict[str, Any]],
    layers: Sequence[alt.Chart],
    compared: Sequence[ComparedRun],
    last: Mapping[str, int],
    description: str,
    height: int,
) -> alt.LayerChart:
    params = {
        "at": -1,
        "along": next(iter(last)),
        "shown": [True] * len(compared),
        "ends": dict(last),
        "costs": X_AXES,
    }
    return alt.LayerChart(
        data={"values": list(records)},
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


def _looks(compared: Sequence[ComparedRun]) -> dict[str, Any]:
    """Colour and dash by run."""
    places = list(range(len(compared)))
    colours = [f"var(--{one.look.colour})" for one in compared]
    dashes = [one.look.dash for one in compared]
    return {
        "color": alt.Color("run:N", scale=alt.Scale(domain=places, range=colours), legend=None),
        "strokeDash": alt.StrokeDash(
            "run:N", scale=alt.Scale(domain=places, range=dashes), legend=None
        ),
    }


def _points(compared: Sequence[ComparedRun], size: int) -> alt.Chart:
    places = list(range(len(compared)))
    shapes = alt.Scale(domain=places, range=[one.look.shape for one in compared])
    return (
        alt.Chart()
        .mark_point(size=size)
        .encode(
            shape=alt.Shape("run:N", scale=shapes, legend=None), color=_looks(compared)["color"]
        )
    )


def _shown(opacity: float = 1.0) -> Any:
    return alt.condition("shown[datum.run]", alt.value(opacity), alt.value(FAINT))


def _cursor() -> alt.Chart:
    return (
        base_chart([{}])
        .transform_calculate(where="max(at, 0)")
        .mark_rule(style="muted", strokeWidth=1, opacity=alt.expr("at < 0 ? 0 : 1"), aria=False)
        .encode(x=_x("where"))
    )


def _told(compared: Sequence[ComparedRun], known: Sequence[int], number: str) -> alt.Chart:
    """A band around every place that has a point, with the numbers of all runs there.

    Of iterations at one place (they made no optimizer step) the last is told.
    """
    texts = {
        f"text{place}": f"isValid(datum.r{place}) ? format(datum.r{place}, '{number}') : '–'"
        for place in known
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
            **texts,
        )
        .mark_rect(opacity=0, clip=True, aria=False)
        .encode(
            x=_x("left"),
            x2="right:Q",
            tooltip=[
                alt.Tooltip("where:N", title=" "),  # no run is called so
                *(alt.Tooltip(f"text{place}:N", title=compared[place].name) for place in known),
            ],
        )
    )


def _axis_title() -> alt.Chart:
    """What lies along x; an axis of Vega-Lite cannot change its own title."""
    words = base_chart([{}]).mark_text(
        style="muted", align="right", baseline="top", fontSize=11, aria=False
    )
    return words.encode(
        x=alt.value(alt.expr("width")),
        y=alt.value(alt.expr("height + 20")),
        text=alt.value(alt.expr("costs[along]")),
    )


def _described(compared: Sequence[ComparedRun], lines: Sequence[RunPoints], title: str) -> str:
    told = [
        f"{one.name} {line[0]['value']:.3g} to {line[-1]['value']:.3g}"
        for one, line in zip(compared, lines, strict=True)
        if line
    ]
    return f"{title} of {len(told)} runs, from first to last: {'; '.join(told)}"
