"""Panel of the monitor: how far tokens moved in every iteration, and how much push cancelled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import altair as alt
from markupsafe import Markup, escape

from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.render import render
from counterpoise.report.charts.series import (
    MAX_DISTINCT_POINTS,
    SHARE_AXIS,
    Records,
    ValueAxis,
    area,
    base_chart,
    iteration_chart,
    line_chart,
    stack_fields,
    x_axis,
    y_axis,
)
from counterpoise.report.missing_pushes import replay_command
from counterpoise.report.not_measured import NO_UPDATE, took_no_step
from counterpoise.report.panels.panel import Panel
from counterpoise.report.run_data import RunData
from counterpoise.report.traces import read_vocabulary

# (field, what happened to the token, colour), stacked from the bottom up
MOVEMENT_CLASSES = (
    ("boosted", "boosted", "positive"),
    ("stable", "stable", "soft"),
    ("suppressed", "suppressed", "negative"),
)
SIZE_AXIS = ValueAxis(".3~g")
ROUNDING = 1e-6  # smaller values are rounding error and are drawn as 0
# (metric, title, note)
SHARE_METRICS = (
    (
        "flipped",
        "Moved against their advantage",
        "Share of tokens whose probability fell although their advantage was positive, or rose "
        "although it was negative.",
    ),
    (
        "cancellation",
        "Cancelled push",
        "Share of the push on tokens that cancels between positive and negative rollouts: "
        "1 − |net push| / (sum of both sizes). At 1 all of it cancels.",
    ),
    (
        "own_share",
        "Push from the token itself",
        "Share of the push on a token that comes from its own advantage; the rest comes from other "
        "tokens of the same optimizer step.",
    ),
    (
        "same_token_share",
        "Push from equal tokens",
        "Share of the push from other tokens that comes from tokens with the same id.",
    ),
    (
        "proxy_agreement",
        "Output layer predicts the direction",
        "Share of tokens that moved in the direction that the output layer's push alone predicts.",
    ),
    (
        "shared_prefix_share",
        "Tokens in shared prefixes",
        "Share of tokens in a response prefix that another rollout of the same group has too.",
    ),
    (
        "exchangeability",
        "Advantage left on shared prefixes",
        "Where rollouts of a group share a prefix: |sum of advantages| / sum of |advantages|. "
        "At 0 they cancel; at 1 all have the same sign.",
    ),
    (
        "lazy_likelihood",
        "Right rollouts that did not rise",
        "Share of rollouts with a positive advantage whose own log-probability the step did not "
        "raise: lazy likelihood displacement.",
    ),
)
SIZE_METRICS = (
    (
        "learning_tax",
        "Side effect on shared contexts",
        "Mean KL(new ‖ old), in nats, of the next-token distribution where right and wrong "
        "rollouts of a prompt still share their prefix. No reward asks for this change.",
    ),
    (
        "solution_drift",
        "Drift between right answers",
        "Mean absolute change of the log-odds between two right responses to the same prompt, in "
        "nats.",
    ),
)


def panel(run: RunData) -> Panel | None:
    # An iteration may have trained on tokens of one sign only.
    measured_records = [
        record
        for record in run.metrics
        if any(record.get(f"boosted_{sign}") is not None for sign in ("positive", "negative"))
    ]
    if not measured_records:
        return Panel("Cancellation", _why_unmeasured(run), Markup()) if run.plans else None
    figures = (
        _movement_figure(run, measured_records, "positive", "Tokens of positive rollouts"),
        _movement_figure(run, measured_records, "negative", "Tokens of negative rollouts"),
        _distance_figure(run, measured_records),
        *(_share_figure(run, *metric) for metric in SHARE_METRICS),
        *(_size_figure(run, *metric) for metric in SIZE_METRICS),
    )
    return Panel(
        "Cancellation",
        "How an update changed the log-probability of the tokens it was trained on. If each token "
        "only followed its own advantage, those of positive rollouts would all rise (boosted) and "
        "those of negative ones would all fall (suppressed). The more alike the two charts are, "
        "the more tokens were moved by other tokens of the same optimizer step. A push is what one "
        "token's gradient does to the log-probability of another through the output layer.",
        tuple(figure for figure in figures if figure),
        after=_token_types_table(run, measured_records[-1]),
        assets=("monitor.css",),
    )


def _why_unmeasured(run: RunData) -> Markup:
    """What to do for a run whose updates were not measured."""
    if took_no_step(run.metrics):
        return escape(f"The run {NO_UPDATE}, so no token moved and nothing cancelled.")
    command = replay_command(
        run.path,
        run.plans[-1]["iteration"],
        len(run.plans[-1]["groups"]),
        shown_as=run.name,
        model=run.model_name,
    )
    return Markup(
        "No update was measured, so nothing says how far tokens moved and what cancelled. The "
        "microscope measures every monitor.every-th iteration, and none at 0 (in TRL, "
        "monitor_every). {} <code>{}</code>"
    ).format(command.explanation, command.text)


def _movement_figure(
    run: RunData, measured_records: Records, sign: str, title: str
) -> Figure | None:
    records = []
    for record in measured_records:
        # The iteration trained on no tokens of this sign.
        if record.get(f"boosted_{sign}") is None:
            continue
        class_shares = {
            class_name: record[f"{class_name}_{sign}"] for class_name, _, _ in MOVEMENT_CLASSES
        }
        records.append({"iteration": record["iteration"], **class_shares})
    if not records:
        return None
    bands = stack_fields(records, [class_name for class_name, _, _ in MOVEMENT_CLASSES])
    x_encoding, y_encoding = x_axis(run.axis_range), y_axis("floor", "%", (0.0, 1.0))
    layers = [
        area([band for band in bands if band["field"] == class_name], style=colour).encode(
            x=x_encoding, y=y_encoding, y2=alt.Y2("top:Q")
        )
        for class_name, _, colour in MOVEMENT_CLASSES
    ]
    chart = iteration_chart(
        layers,
        records,
        [(class_name, meaning, ".1%") for class_name, meaning, _ in MOVEMENT_CLASSES],
        run.axis_range,
        f"{title}: {100 * records[-1]['boosted']:.0f} percent boosted and "
        f"{100 * records[-1]['suppressed']:.0f} percent suppressed in the last update",
        height=170,
    )
    return Figure(
        chart, title, keys=tuple((colour, meaning) for _, meaning, colour in MOVEMENT_CLASSES)
    )


def _distance_figure(run: RunData, measured_records: Records) -> Figure | None:
    field_names = ("moved_positive", "moved_negative")
    records = [
        {
            "iteration": record["iteration"],
            **{field_name: record[field_name] for field_name in field_names},
        }
        for record in measured_records
        if all(record.get(field_name) is not None for field_name in field_names)
    ]
    if not records:
        return None
    x_encoding = x_axis(run.axis_range)
    layers = []
    for field_name in field_names:
        style, y_encoding = field_name.removeprefix("moved_"), y_axis(field_name)
        layers.append(base_chart(records).mark_line(style=style).encode(x=x_encoding, y=y_encoding))
        if len(records) <= MAX_DISTINCT_POINTS:
            layers.append(
                base_chart(records).mark_point(style=style).encode(x=x_encoding, y=y_encoding)
            )
    chart = iteration_chart(
        layers,
        records,
        [("moved_positive", "positive", ".3~g"), ("moved_negative", "negative", ".3~g")],
        run.axis_range,
        "Mean absolute change of log-probability, for positive and for negative rollouts",
        height=170,
    )
    keys = (("positive", "positive rollouts"), ("negative", "negative rollouts"))
    return Figure(chart, "How far tokens moved", "Mean |Δ log p|, in nats.", keys)


def _share_figure(run: RunData, metric: str, title: str, note: str) -> Figure | None:
    points = metric_points(run, metric)
    axis = choose_share_axis(value for _, value in points)
    chart = line_chart(points, run.axis_range, title, axis)
    return Figure(chart, title, note) if chart else None


def metric_points(run: RunData, metric: str) -> list[tuple[int, float | None]]:
    """(iteration, value) of a metric, with rounding error replaced by 0."""
    return [
        (record["iteration"], value if value is None or abs(value) > ROUNDING else 0.0)
        for record in run.metrics
        for value in (record.get(metric),)
    ]


def choose_share_axis(values: Iterable[float | None]) -> ValueAxis:
    """The axis of a chart of shares.

    If all shares are small the axis follows the data; an axis up to 100 % would flatten them.
    """
    all_are_small = 0 < max((value for value in values if value is not None), default=0.0) < 0.1
    return ValueAxis(".2~%", "~%") if all_are_small else SHARE_AXIS


def _size_figure(run: RunData, metric: str, title: str, note: str) -> Figure | None:
    points = [(record["iteration"], record.get(metric)) for record in run.metrics]
    chart = line_chart(points, run.axis_range, title, SIZE_AXIS)
    return Figure(chart, title, note) if chart else None


def _token_types_table(run: RunData, record: dict[str, Any]) -> Markup:
    """Table of the tokens that receive most of the push in one iteration."""
    token_types = record.get("cancellation_types")
    if not token_types:
        return Markup()
    vocabulary = read_vocabulary(run.path)
    return render(
        "monitor.html",
        iteration=record["iteration"],
        types=[
            (vocabulary[int(token_id)], cancelled_share, push_share)
            for token_id, cancelled_share, push_share in token_types
        ],
        widest=max(push_share for _, _, push_share in token_types),
    )
