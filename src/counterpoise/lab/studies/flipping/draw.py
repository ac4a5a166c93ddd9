"""Charts of the flipping study (Fig. 1 and 9)."""

from __future__ import annotations

from functools import partial

import altair as alt

from counterpoise.lab.studies.flipping.judge import (
    ARMS,
    FULL_BATCH,
    OPTIMIZERS,
    SIGNS,
    MovementCounts,
)
from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.forest import forest_chart, forest_point
from counterpoise.report.charts.series import base_chart, x_axis, y_axis
from counterpoise.statistics.finding import Record, Records

CLASSES = {"boosted": "positive", "suppressed": "negative", "stable": "soft"}
KEYS = tuple((colour, name) for name, colour in CLASSES.items())


def draw(records: Records) -> tuple[Figure, ...]:
    runs = [record for record in records if record["panel"] == "run"]
    figures = (
        _classes(runs, "joint", "positive", "Positive rollouts, joint training"),
        _classes(runs, "joint", "negative", "Negative rollouts, joint training"),
        _classes(runs, "positive_only", "positive", "Positive rollouts, trained alone"),
        _sizes([record for record in runs if record["arm"] == "joint"]),
        _steps(records),
    )
    return tuple(figure for figure in figures if figure)


def _classes(runs: Records, arm: str, sign: str, title: str) -> Figure | None:
    arm_records = [record for record in runs if record["arm"] == arm and record["sign"] == sign]
    if not arm_records:
        return None
    layers = []
    for class_name, colour in CLASSES.items():
        layers += _line(
            [
                {"iteration": record["iteration"], "value": record[class_name]}
                for record in arm_records
            ],
            colour,
            "%",
        )
    note = "Share of tokens that the updates of an iteration boosted, suppressed or left stable."
    return Figure(_layered(layers, title), title, note, KEYS)


def _sizes(runs: Records) -> Figure | None:
    if not runs:
        return None
    layers = []
    for sign in SIGNS:
        sign_records = [record for record in runs if record["sign"] == sign]
        layers += _line(
            [
                {"iteration": record["iteration"], "value": record["moved"]}
                for record in sign_records
            ],
            sign,
        )
    title = "How far tokens move"
    legend_entries = tuple((sign, f"{sign} rollouts") for sign in SIGNS)
    note = "By iteration: mean change of log-probability, either way, joint training."
    return Figure(_layered(layers, title), title, note, legend_entries)


def _line(points: list[Record], colour: str, axis_format: str = "") -> list[alt.Chart]:
    x_scale = x_axis(max((point["iteration"] for point in points), default=1))
    y_scale = y_axis("value", axis_format, (0.0, 1.0) if axis_format == "%" else None)
    tooltip = [
        alt.Tooltip("iteration:Q"),
        alt.Tooltip("value:Q", format=".1%" if axis_format else ".4f"),
    ]
    points_chart = base_chart(points)
    return [
        points_chart.mark_line(style=colour).encode(x=x_scale, y=y_scale),
        points_chart.mark_point(style=colour).encode(x=x_scale, y=y_scale, tooltip=tooltip),
    ]


def _layered(layers: list[alt.Chart], title: str) -> alt.LayerChart:
    return alt.LayerChart(layer=layers, width="container", height=170, description=title)


def _steps(records: Records) -> Figure:
    points = []
    for optimizer in OPTIMIZERS:
        for arm in ARMS:
            counts = MovementCounts(records, optimizer, arm)
            for sign in (*SIGNS, FULL_BATCH):
                row_label = f"{optimizer}, {arm.replace('_', '-')}, {sign} rollouts"
                for class_name in ("boosted", "suppressed"):
                    share_interval = counts.interval(partial(counts.share, class_name, sign))
                    points.append(forest_point(row_label, class_name, share_interval))
    layered_chart = forest_chart(
        points,
        {class_name: CLASSES[class_name] for class_name in ("boosted", "suppressed")},
        "share of tokens",
        "Boosted and suppressed tokens after one update, by optimizer, update and sign",
        axis="%",
        number=".1%",
        zero=True,
        labels=210,
    )
    return Figure(
        layered_chart,
        "One update from the same checkpoint",
        "Joint: GRPO. Positive-only: the same batch with negative advantages set to 0. The rest of "
        "the tokens is stable. Bars: 95 % over prompts.",
        KEYS[:2],
        wide=True,
    )
