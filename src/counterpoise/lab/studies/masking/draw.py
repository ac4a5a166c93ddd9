"""The charts of Table 1 and Fig. 3, from the records of lab/studies/masking/measure.py."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import altair as alt
import numpy as np

from counterpoise.lab.studies.masking.judge import (
    EDGES,
    ETA,
    LAYERS,
    PAPER,
    matching,
    mean_boost,
    rate,
)
from counterpoise.report.charts.forest import ForestPoint, forest_chart, forest_point
from counterpoise.report.charts.series import base_chart
from counterpoise.report.panels.panel import Figure
from counterpoise.statistics.finding import Record, Records

CONDITIONS = {"random": "random", "same": "same token", "low": "low confidence", "both": "both"}
STYLES = {"positive": "positive", "mixed": "series", "negative": "negative"}
SOURCES = (
    ("positive", "masked tokens from positive rollouts"),
    ("negative", "from negative"),
    ("series", "as they come"),
)


def draw(records: Records) -> tuple[Figure, ...]:
    return (
        *(_table(records, layer) for layer in LAYERS),
        _by_candidate(records),
        _effects(records),
        _strength(records),
        _mixture(records),
        _top(records, "rate"),
        _top(records, "mean"),
    )


# -- Table 1 --------------------------------------------------------------------------------------


def _table(records: Records, layer: str) -> Figure:
    table = matching(records, panel="table", layer=layer, how="update", rate=ETA)
    points = [
        forest_point(
            label,
            source,
            rate(matching(table, condition=condition, source=source)),
            PAPER[condition, layer][0] if source == "mixed" else None,
        )
        for condition, label in CONDITIONS.items()
        for source in STYLES
    ]
    return Figure(
        _forest(points),
        f"Boost Rate, {LAYERS[layer]}",
        "Share of candidates that the masked tokens had raised, by which tokens are masked and "
        "whose they are. Ticks: the paper's Table 1, which does not say whose.",
        SOURCES,
    )


def _by_candidate(records: Records) -> Figure:
    both = matching(records, panel="table", layer="head", how="update", condition="both")
    points = [
        forest_point(f"{sign} candidate", source, rate(matching(both, sign=sign, source=source)))
        for sign in ("positive", "negative")
        for source in STYLES
    ]
    return Figure(
        _forest(points),
        "By the candidate's own rollout",
        "Boost Rate of masked tokens that are the same and of low confidence, output layer, by the "
        "sign of the rollout the candidate stands in.",
        SOURCES,
    )


def _forest(points: Sequence[ForestPoint]) -> alt.LayerChart:
    return forest_chart(
        [p for p in points if not np.isnan(p["value"])],
        STYLES,
        "Boost Rate",
        "Boost Rate by kind of masked token and sign of its rollout",
        number=".1%",
        axis="%",
        zero=True,
        guide=0.5,
        labels=112,
    )


# -- Fig. 3 ---------------------------------------------------------------------------------------


def _effects(records: Records) -> Figure:
    """Panel a: cumulative, because effects span orders of magnitude on both sides of 0."""
    table = matching(records, panel="table", layer="head", how="update")
    chosen = {
        "random": ("muted", matching(table, condition="random", source="mixed")),
        "mixed": ("series", matching(table, condition="both", source="mixed")),
        "positive": ("positive", matching(table, condition="both", source="positive")),
        "negative": ("negative", matching(table, condition="both", source="negative")),
    }
    widest = float(np.quantile([abs(r["effect"]) for _, rs in chosen.values() for r in rs], 0.98))
    x = alt.X(
        "effect:Q",
        scale=alt.Scale(type="symlog", constant=widest / 300, domain=[-widest, widest], clamp=True),
        axis=alt.Axis(
            title="masking effect, nats", format="~g", values=_decades(widest), tickMinStep=0
        ),
    )
    y = alt.Y("share:Q", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1]))
    layers = [base_chart([{"effect": 0}]).mark_rule(style="line").encode(x=x)]
    for style, members in chosen.values():
        values = np.sort([r["effect"] for r in members])
        steps = np.unique(np.linspace(0, len(values) - 1, min(len(values), 200)).astype(int))
        line = [{"effect": float(values[i]), "share": (i + 1) / len(values)} for i in steps]
        layers.append(
            base_chart(line).mark_line(style=style, interpolate="step-after").encode(x=x, y=y)
        )
    return Figure(
        alt.LayerChart(
            layer=layers, width="container", height=200, description="Masking effects, cumulative"
        ),
        "Masking effects",
        "Share of candidates with an effect up to x (output layer). Equal tokens of low "
        "confidence, by whose they are, against random tokens. A curve to the right of 0 means "
        "that the masked tokens had raised the candidate.",
        (("muted", "random tokens"), *SOURCES),
    )


def _decades(widest: float) -> list[float]:
    top = 10.0 ** np.floor(np.log10(widest))
    return [-top, -top / 10, 0, top / 10, top]


def _strength(records: Records) -> Figure:
    labels = [f"{low:g} to {high:g}" for low, high in pairwise(EDGES)]
    points = [
        _point(matching(mine, condition=f"{low}"), at=label, source=source, layer=layer)
        for layer, how in (("head", "update"), ("full", "first order"))
        for source in STYLES
        for mine in [matching(records, panel="strength", layer=layer, how=how, source=source)]
        for low, label in zip(EDGES[:-1], labels, strict=True)
    ]
    x = alt.X("at:N", sort=labels, axis=alt.Axis(labelAngle=-35, title="cosine with the candidate"))
    return Figure(
        _lines(points, x, "Boost Rate by coupling"),
        "Boost Rate by coupling strength",
        "Up to 16 tokens from each band of the cosine of output-layer gradients. Solid: output "
        "layer; dashed: all parameters, first order. As they come, tokens of both signs undo each "
        "other however strong the coupling.",
        SOURCES,
    )


def _top(records: Records, what: str) -> Figure:
    points = [
        _point(
            matching(mine, condition=n), at=int(n), source=source, layer=layer, mean=what == "mean"
        )
        for layer, how in (("head", "update"), ("full", "first order"))
        for source in STYLES
        for mine in [matching(records, panel="top", layer=layer, how=how, source=source)]
        for n in sorted({r["condition"] for r in mine}, key=int)
    ]
    x = alt.X(
        "at:Q",
        scale=alt.Scale(type="log", base=2),
        axis=alt.Axis(
            title="masked tokens, strongest first", values=sorted({p["at"] for p in points})
        ),
    )
    title = "Mean Boost" if what == "mean" else "Boost Rate"
    return Figure(
        _lines(points, x, f"{title} by number of masked tokens", share=what == "rate"),
        f"{title} by number masked",
        ("In nats. " if what == "mean" else "")
        + "The tokens with the largest cosine, of all rollouts or of one sign. Solid: output "
        "layer; dashed: all parameters, first order.",
        SOURCES,
    )


def _mixture(records: Records) -> Figure:
    points = [
        _point(matching(mine, condition=q), at=float(q), source="mixed", layer=layer)
        for layer, how in (("head", "update"), ("full", "first order"))
        for mine in [matching(records, panel="mixture", layer=layer, how=how)]
        for q in sorted({r["condition"] for r in mine}, key=float)
    ]
    x = alt.X(
        "at:Q",
        axis=alt.Axis(
            format="%", title="masked tokens from positive rollouts", tickCount=5, tickMinStep=0
        ),
    )
    paper = {"value": PAPER["both", "full"][0]}
    return Figure(
        _lines(points, x, "Boost Rate by share of positive tokens", guides=[paper]),
        "Which mixture gives 75 %",
        "Boost Rate of four equal tokens of low confidence, by how many of them come from positive "
        "rollouts. Dotted: the paper's 75 %.",
        (("series", "output layer; dashed: all parameters, first order"),),
    )


def _lines(
    points: Records, x: alt.X, description: str, *, share: bool = True, guides: Records = ()
) -> alt.LayerChart:
    """One line a source, solid for the output layer, dashed for all parameters."""
    axis = alt.Axis(format="%") if share else alt.Axis(format="~g")
    scale = alt.Scale(domain=[0, 1]) if share else alt.Scale(nice=True)
    y = alt.Y("value:Q", scale=scale, axis=axis)
    middle = base_chart([{"value": 0.5 if share else 0.0}])
    layers = [middle.mark_rule(style="line").encode(y=y)]
    layers += [
        base_chart([g]).mark_rule(style="muted", strokeDash=[2, 3]).encode(y=y) for g in guides
    ]
    for source, style in STYLES.items():
        for layer, dash in (("head", [1, 0]), ("full", [5, 4])):
            mine = base_chart(matching(points, source=source, layer=layer))
            if layer == "head":
                band = mine.mark_area(style=style, opacity=0.14).encode(x=x, y="low:Q", y2="high:Q")
                layers.append(band)
            layers.append(mine.mark_line(style=style, strokeDash=dash).encode(x=x, y=y))
            layers.append(mine.mark_point(style=style).encode(x=x, y=y, tooltip=TIPS))
    return alt.LayerChart(layer=layers, width="container", height=200, description=description)


TIPS = [
    alt.Tooltip("value:Q", title="value", format=".3~g"),
    alt.Tooltip("low:Q", title="from", format=".3~g"),
    alt.Tooltip("high:Q", title="to", format=".3~g"),
    alt.Tooltip("candidates:Q", title="candidates"),
]


def _point(records: Records, *, mean: bool = False, **keys: object) -> Record:
    found = mean_boost(records) if mean else rate(records)
    value, low, high = (None if np.isnan(v) else v for v in found)
    return {**keys, "value": value, "low": low, "high": high, "candidates": len(records)}
