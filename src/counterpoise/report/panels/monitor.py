"""What the monitor saw, iteration by iteration: how tokens moved, and how much cancelled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from markupsafe import Markup

from counterpoise.report.charts.render import render
from counterpoise.report.charts.series import (
    MAX_DISTINCT_POINTS,
    Records,
    base_chart,
    iteration_chart,
    line_chart,
    x_axis,
    y_axis,
)
from counterpoise.report.panels.panel import Figure, Panel
from counterpoise.report.run_data import RunData
from counterpoise.report.traces import read_vocabulary

# field, what became of the token, colour; drawn from the bottom up
MOVEMENT_CLASSES = (
    ("boosted", "boosted", "positive"),
    ("stable", "stable", "soft"),
    ("suppressed", "suppressed", "negative"),
)
ROUNDING = 1e-6
# metric, title, note
SHARE_METRICS = (
    (
        "flipped",
        "Moved against their sign",
        "Share of tokens whose probability fell though their rollout was right, or rose though it "
        "was wrong.",
    ),
    (
        "cancellation",
        "Cancellation index",
        "1 − |net push| over what positive and negative rollouts pushed; 1: they undo each other.",
    ),
    (
        "own_share",
        "Own share",
        "Of the push on a token, what its own advantage made; the rest came from other tokens.",
    ),
    (
        "same_token_share",
        "Same-token share",
        "Of what other tokens pushed, the part that came from equal tokens.",
    ),
    (
        "proxy_agreement",
        "Output layer against all",
        "Share of tokens that moved the way the push of the output layer alone foretells.",
    ),
    (
        "shared_prefix_share",
        "Shared prefix",
        "Share of tokens that stand in a prefix other rollouts of their group have too.",
    ),
    (
        "exchangeability",
        "Exchangeability residual",
        "On shared prefixes: what is left of the advantages over their size; 0: they cancel.",
    ),
)
SIZE_METRICS = (
    (
        "learning_tax",
        "Learning tax",
        "Mean KL(new || old) in nats where right and wrong rollouts share a place: no one's wish.",
    ),
    (
        "solution_drift",
        "Drift between right answers",
        "Mean change of the log-odds between two right answers of a query, in nats.",
    ),
)


def panel(run: RunData) -> Panel | None:
    looked_at = [r for r in run.metrics if r.get("boosted_positive") is not None]
    if not looked_at:
        return None
    figures = (
        _classes(run, looked_at, "positive", "Tokens of positive rollouts"),
        _classes(run, looked_at, "negative", "Tokens of negative rollouts"),
        _moved(run, looked_at),
        *(_share(run, *of) for of in SHARE_METRICS),
        *(_size(run, *of) for of in SIZE_METRICS),
    )
    return Panel(
        "Cancellation",
        "What an update did to the log-probability of its own tokens. If it only followed the "
        "reward, positive rollouts would be boosted and negative ones suppressed; the more the two "
        "charts are alike, the more tokens were moved by what they share with others.",
        tuple(figure for figure in figures if figure),
        after=_types(run, looked_at[-1]),
        assets=("monitor.css",),
    )


def _classes(run: RunData, looked_at: Records, sign: str, title: str) -> Figure | None:
    records, bands = [], []
    for record in looked_at:
        if record.get(f"boosted_{sign}") is None:  # no tokens of this sign
            continue
        values = {name: record[f"{name}_{sign}"] for name, _, _ in MOVEMENT_CLASSES}
        at = {"iteration": record["iteration"]}
        records.append({**at, **values})
        floor = 0.0
        for name, _, _ in MOVEMENT_CLASSES:
            bands.append({**at, "kind": name, "floor": floor, "top": floor + values[name]})
            floor += values[name]
    if not records:
        return None
    x, y = x_axis(run.last_iteration), y_axis("floor", "%", [0.0, 1.0])
    layers = [
        _band([b for b in bands if b["kind"] == name], colour, x, y)
        for name, _, colour in MOVEMENT_CLASSES
    ]
    drawn = iteration_chart(
        layers,
        records,
        [(name, meaning, ".1%") for name, meaning, _ in MOVEMENT_CLASSES],
        run.last_iteration,
        f"{title}: {100 * records[-1]['boosted']:.0f} percent boosted and "
        f"{100 * records[-1]['suppressed']:.0f} percent suppressed in the last update",
        height=170,
    )
    return Figure(
        drawn, title, keys=tuple((colour, meaning) for _, meaning, colour in MOVEMENT_CLASSES)
    )


def _band(records: Records, colour: str, x: Any, y: Any) -> Any:
    """An area; a single iteration is a bar, for an area would have no width."""
    if len(records) == 1:
        return (
            base_chart(records)
            .mark_bar(style=colour, opacity=0.85, size=14)
            .encode(x=x, y=y, y2="top:Q")
        )
    return base_chart(records).mark_area(style=colour, opacity=0.85).encode(x=x, y=y, y2="top:Q")


def _moved(run: RunData, looked_at: Records) -> Figure | None:
    fields = ("moved_positive", "moved_negative")
    records = [
        {"iteration": r["iteration"], **{name: r[name] for name in fields}}
        for r in looked_at
        if all(r.get(name) is not None for name in fields)
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
    drawn = iteration_chart(
        layers,
        records,
        [("moved_positive", "positive", ".3~g"), ("moved_negative", "negative", ".3~g")],
        run.last_iteration,
        "Mean change of log-probability in size, for positive and for negative rollouts",
        height=170,
    )
    keys = (("positive", "positive rollouts"), ("negative", "negative rollouts"))
    return Figure(drawn, "How far they moved", "Mean |Δ log p|, in nats.", keys)


def _share(run: RunData, metric: str, title: str, note: str) -> Figure | None:
    points = metric_points(run, metric)
    number, axis, domain = choose_share_axis(value for _, value in points)
    drawn = line_chart(points, run.last_iteration, title, number, axis=axis, domain=domain)
    return Figure(drawn, title, note) if drawn else None


def metric_points(run: RunData, metric: str) -> list[tuple[int, float | None]]:
    """(iteration, value); what is left of rounding is shown as 0."""
    return [
        (record["iteration"], value if value is None or abs(value) > ROUNDING else 0.0)
        for record in run.metrics
        for value in (record.get(metric),)
    ]


def choose_share_axis(values: Iterable[float | None]) -> tuple[str, str, list[float] | None]:
    """(format of a number, of the axis, its domain): one to 100 % would flatten small shares."""
    small = 0 < max((value for value in values if value is not None), default=0.0) < 0.1
    return (".2~%", "~%", None) if small else (".1%", "%", [0.0, 1.0])


def _size(run: RunData, metric: str, title: str, note: str) -> Figure | None:
    points = [(record["iteration"], record.get(metric)) for record in run.metrics]
    drawn = line_chart(points, run.last_iteration, title, ".3~g")
    return Figure(drawn, title, note) if drawn else None


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
