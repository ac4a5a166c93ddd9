"""The charts of Fig. 1 and 9, from the records of lab/studies/flipping/measure.py."""

from __future__ import annotations

from functools import partial

import altair as alt

from counterpoise.lab.studies.flipping.judge import ARMS, OPTIMIZERS, SIGNS, Moved
from counterpoise.report.charts.forest import forest_chart, forest_point
from counterpoise.report.charts.series import base_chart, x_axis, y_axis
from counterpoise.report.panels.panel import Figure
from counterpoise.statistics.finding import Record, Records

CLASSES = {"boosted": "positive", "suppressed": "negative", "stable": "soft"}
KEYS = tuple((colour, name) for name, colour in CLASSES.items())


def draw(records: Records) -> tuple[Figure, ...]:
    runs = [r for r in records if r["panel"] == "run"]
    figures = (
        _classes(runs, "joint", "positive", "Positive rollouts, joint training"),
        _classes(runs, "joint", "negative", "Negative rollouts, joint training"),
        _classes(runs, "positive_only", "positive", "Positive rollouts, trained alone"),
        _sizes([r for r in runs if r["arm"] == "joint"]),
        _steps(records),
    )
    return tuple(figure for figure in figures if figure)


def _classes(runs: Records, arm: str, sign: str, title: str) -> Figure | None:
    mine = [r for r in runs if r["arm"] == arm and r["sign"] == sign]
    if not mine:
        return None
    layers = []
    for name, colour in CLASSES.items():
        layers += _line(
            [{"iteration": r["iteration"], "value": r[name]} for r in mine], colour, "%"
        )
    note = "By iteration: share of tokens by what its updates did to their probability."
    return Figure(_layered(layers, title), title, note, KEYS)


def _sizes(runs: Records) -> Figure | None:
    if not runs:
        return None
    layers = []
    for sign in SIGNS:
        mine = [r for r in runs if r["sign"] == sign]
        layers += _line([{"iteration": r["iteration"], "value": r["moved"]} for r in mine], sign)
    title = "How far tokens move"
    keys = tuple((sign, f"{sign} rollouts") for sign in SIGNS)
    note = "By iteration: mean change of log-probability, either way, joint training."
    return Figure(_layered(layers, title), title, note, keys)


def _line(points: list[Record], colour: str, form: str = "") -> list[alt.Chart]:
    x = x_axis(max((p["iteration"] for p in points), default=1))
    y = y_axis("value", form, [0.0, 1.0] if form == "%" else None)
    tip = [alt.Tooltip("iteration:Q"), alt.Tooltip("value:Q", format=".1%" if form else ".4f")]
    drawn = base_chart(points)
    return [
        drawn.mark_line(style=colour).encode(x=x, y=y),
        drawn.mark_point(style=colour).encode(x=x, y=y, tooltip=tip),
    ]


def _layered(layers: list[alt.Chart], title: str) -> alt.LayerChart:
    return alt.LayerChart(layer=layers, width="container", height=170, description=title)


def _steps(records: Records) -> Figure:
    points = []
    for optimizer in OPTIMIZERS:
        for arm in ARMS:
            moved = Moved(records, optimizer, arm)
            for sign in SIGNS:
                line = f"{optimizer}, {arm.replace('_', '-')}, {sign} rollouts"
                for name in ("boosted", "suppressed"):
                    found = moved.interval(partial(moved.share, name, sign))
                    points.append(forest_point(line, name, found))
    drawn = forest_chart(
        points,
        {name: CLASSES[name] for name in ("boosted", "suppressed")},
        "share of tokens",
        "Boosted and suppressed tokens after one update, by optimizer, update and sign",
        axis="%",
        number=".1%",
        zero=True,
        labels=210,
    )
    return Figure(
        drawn,
        "One update from the same checkpoint",
        "Joint: GRPO. Positive-only: the same batch with negative advantages set to 0. The rest of "
        "the tokens is stable. Bars: 95 % over prompts.",
        KEYS[:2],
        wide=True,
    )
