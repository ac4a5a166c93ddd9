"""Panel of the monitor: how tokens moved in every iteration, and how much of it cancelled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from markupsafe import Markup

from counterpoise.report.charts.render import render
from counterpoise.report.charts.series import (
    MAX_DISTINCT_POINTS,
    SHARE_AXIS,
    Records,
    ValueAxis,
    base_chart,
    iteration_chart,
    line_chart,
    x_axis,
    y_axis,
)
from counterpoise.report.panels.panel import Figure, Panel
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
        "Share of the push on tokens that positive and negative rollouts undo for each other: "
        "1 − |net push| / (sum of both). At 1 nothing is left of it.",
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
    measured = [record for record in run.metrics if record.get("boosted_positive") is not None]
    if not measured:
        return None
    figures = (
        _classes(run, measured, "positive", "Tokens of positive rollouts"),
        _classes(run, measured, "negative", "Tokens of negative rollouts"),
        _moved(run, measured),
        *(_share(run, *metric) for metric in SHARE_METRICS),
        *(_size(run, *metric) for metric in SIZE_METRICS),
    )
    return Panel(
        "Cancellation",
        "How an update changed the log-probability of the tokens it was trained on. If each token "
        "only followed its own advantage, those of positive rollouts would all rise (boosted) and "
        "those of negative ones would all fall (suppressed). The more alike the two charts are, "
        "the more tokens were moved by other tokens of the same optimizer step. A push is what one "
        "token's gradient does to the log-probability of another through the output layer.",
        tuple(figure for figure in figures if figure),
        after=_types(run, measured[-1]),
        assets=("monitor.css",),
    )


def _classes(run: RunData, measured: Records, sign: str, title: str) -> Figure | None:
    records, bands = [], []
    for record in measured:
        if record.get(f"boosted_{sign}") is None:  # no tokens of this sign
            continue
        values = {name: record[f"{name}_{sign}"] for name, _, _ in MOVEMENT_CLASSES}
        iteration_field = {"iteration": record["iteration"]}
        records.append({**iteration_field, **values})
        # Bands are stacked by hand: each layer needs the floor and the top of its band.
        floor = 0.0
        for name, _, _ in MOVEMENT_CLASSES:
            bands.append(
                {**iteration_field, "kind": name, "floor": floor, "top": floor + values[name]}
            )
            floor += values[name]
    if not records:
        return None
    x, y = x_axis(run.last_iteration), y_axis("floor", "%", (0.0, 1.0))
    layers = [
        _band([band for band in bands if band["kind"] == name], colour, x, y)
        for name, _, colour in MOVEMENT_CLASSES
    ]
    chart = iteration_chart(
        layers,
        records,
        [(name, meaning, ".1%") for name, meaning, _ in MOVEMENT_CLASSES],
        run.last_iteration,
        f"{title}: {100 * records[-1]['boosted']:.0f} percent boosted and "
        f"{100 * records[-1]['suppressed']:.0f} percent suppressed in the last update",
        height=170,
    )
    return Figure(
        chart, title, keys=tuple((colour, meaning) for _, meaning, colour in MOVEMENT_CLASSES)
    )


def _band(records: Records, colour: str, x: Any, y: Any) -> Any:
    """An area over the iterations; a bar for a single one, where an area would have no width."""
    if len(records) == 1:
        return (
            base_chart(records)
            .mark_bar(style=colour, opacity=0.85, size=14)
            .encode(x=x, y=y, y2="top:Q")
        )
    return base_chart(records).mark_area(style=colour, opacity=0.85).encode(x=x, y=y, y2="top:Q")


def _moved(run: RunData, measured: Records) -> Figure | None:
    fields = ("moved_positive", "moved_negative")
    records = [
        {"iteration": record["iteration"], **{name: record[name] for name in fields}}
        for record in measured
        if all(record.get(name) is not None for name in fields)
    ]
    if not records:
        return None
    x = x_axis(run.last_iteration)
    layers = []
    for name in fields:
        style, y = name.removeprefix("moved_"), y_axis(name)
        layers.append(base_chart(records).mark_line(style=style).encode(x=x, y=y))
        if len(records) <= MAX_DISTINCT_POINTS:
            layers.append(base_chart(records).mark_point(style=style).encode(x=x, y=y))
    chart = iteration_chart(
        layers,
        records,
        [("moved_positive", "positive", ".3~g"), ("moved_negative", "negative", ".3~g")],
        run.last_iteration,
        "Mean change of log-probability in size, for positive and for negative rollouts",
        height=170,
    )
    keys = (("positive", "positive rollouts"), ("negative", "negative rollouts"))
    return Figure(chart, "How far tokens moved", "Mean |Δ log p|, in nats.", keys)


def _share(run: RunData, metric: str, title: str, note: str) -> Figure | None:
    points = metric_points(run, metric)
    axis = choose_share_axis(value for _, value in points)
    chart = line_chart(points, run.last_iteration, title, axis)
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

    Where all shares are small the axis follows the data: one up to 100 % would flatten them.
    """
    small = 0 < max((value for value in values if value is not None), default=0.0) < 0.1
    return ValueAxis(".2~%", "~%") if small else SHARE_AXIS


def _size(run: RunData, metric: str, title: str, note: str) -> Figure | None:
    points = [(record["iteration"], record.get(metric)) for record in run.metrics]
    chart = line_chart(points, run.last_iteration, title, SIZE_AXIS)
    return Figure(chart, title, note) if chart else None


def _types(run: RunData, record: dict[str, Any]) -> Markup:
    types = record.get("cancellation_types")
    if not types:
        return Markup()
    vocabulary = read_vocabulary(run.path)
    return render(
        "monitor.html",
        iteration=record["iteration"],
        types=[(vocabulary[int(token)], index, share) for token, index, share in types],
        widest=max(share for _, _, share in types),
    )
