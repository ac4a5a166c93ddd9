"""Charts of the masking study (Table 1 and Fig. 3)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import altair as alt
import numpy as np

from counterpoise.lab.studies.masking.judge import (
    COSINE_EDGES,
    ETA,
    LAYERS,
    PAPER_TABLE,
    boost_rate,
    matching,
    mean_boost,
)
from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.forest import ForestPoint, forest_chart, forest_point
from counterpoise.report.charts.series import base_chart
from counterpoise.statistics.finding import Record, Records

CONDITION_LABELS = {
    "random": "random",
    "same": "same token",
    "low": "low confidence",
    "both": "both",
}
STYLES = {"positive": "positive", "mixed": "series", "negative": "negative"}
SOURCE_KEYS = (
    ("positive", "masked tokens from positive rollouts"),
    ("negative", "from negative"),
    ("series", "as they come"),
)


def draw(records: Records) -> tuple[Figure, ...]:
    return (
        *(_table_figure(records, layer) for layer in LAYERS),
        _candidate_figure(records),
        _effects_figure(records),
        _strength_figure(records),
        _mixture_figure(records),
        _top_figure(records, "rate"),
        _top_figure(records, "mean"),
    )


# -- Table 1 --------------------------------------------------------------------------------------


def _table_figure(records: Records, layer: str) -> Figure:
    table = matching(records, panel="table", layer=layer, how="update", rate=ETA)
    points = [
        forest_point(
            label,
            source,
            boost_rate(matching(table, condition=condition, source=source)),
            PAPER_TABLE[condition, layer][0] if source == "mixed" else None,
        )
        for condition, label in CONDITION_LABELS.items()
        for source in STYLES
    ]
    return Figure(
        _forest(points),
        f"Boost Rate, {LAYERS[layer]}",
        "Share of candidates that the masked tokens had raised, by the kind of masked tokens and "
        "the sign of their rollouts. Ticks: the paper's Table 1, which does not state the sign.",
        SOURCE_KEYS,
    )


def _candidate_figure(records: Records) -> Figure:
    both_records = matching(records, panel="table", layer="head", how="update", condition="both")
    points = [
        forest_point(
            f"{sign} candidate",
            source,
            boost_rate(matching(both_records, sign=sign, source=source)),
        )
        for sign in ("positive", "negative")
        for source in STYLES
    ]
    return Figure(
        _forest(points),
        "By the candidate's own rollout",
        "Boost Rate of masked tokens that equal the candidate and have low confidence, output "
        "layer, by the sign of the candidate's rollout.",
        SOURCE_KEYS,
    )


def _forest(points: Sequence[ForestPoint]) -> alt.LayerChart:
    return forest_chart(
        [point for point in points if not np.isnan(point["value"])],
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


def _effects_figure(records: Records) -> Figure:
    """Panel a, as a cumulative chart: effects span orders of magnitude on both sides of 0."""
    table = matching(records, panel="table", layer="head", how="update")
    curves = {
        "random": ("muted", matching(table, condition="random", source="mixed")),
        "mixed": ("series", matching(table, condition="both", source="mixed")),
        "positive": ("positive", matching(table, condition="both", source="positive")),
        "negative": ("negative", matching(table, condition="both", source="negative")),
    }
    # The scale ends at the 98th percentile: a few huge effects would hide all others.
    scale_limit = float(
        np.quantile(
            [
                abs(record["effect"])
                for _, curve_records in curves.values()
                for record in curve_records
            ],
            0.98,
        )
    )
    x_axis = alt.X(
        "effect:Q",
        scale=alt.Scale(
            type="symlog",
            constant=scale_limit / 300,
            domain=[-scale_limit, scale_limit],
            clamp=True,
        ),
        axis=alt.Axis(
            title="masking effect, nats", format="~g", values=_decades(scale_limit), tickMinStep=0
        ),
    )
    y_axis = alt.Y("share:Q", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1]))
    layers = [base_chart([{"effect": 0}]).mark_rule(style="line").encode(x=x_axis)]
    for style, curve_records in curves.values():
        values = np.sort([record["effect"] for record in curve_records])
        steps = np.unique(np.linspace(0, len(values) - 1, min(len(values), 200)).astype(int))
        curve_points = [
            {"effect": float(values[index]), "share": (index + 1) / len(values)} for index in steps
        ]
        layers.append(
            base_chart(curve_points)
            .mark_line(style=style, interpolate="step-after")
            .encode(x=x_axis, y=y_axis)
        )
    return Figure(
        alt.LayerChart(
            layer=layers, width="container", height=200, description="Masking effects, cumulative"
        ),
        "Masking effects",
        "Share of candidates with an effect up to x (output layer). Equal tokens of low "
        "confidence, by the sign of their rollouts, against random tokens. A curve to the right of "
        "0 means that the masked tokens had raised the candidate.",
        (("muted", "random tokens"), *SOURCE_KEYS),
    )


def _decades(widest: float) -> list[float]:
    top = 10.0 ** np.floor(np.log10(widest))
    return [-top, -top / 10, 0, top / 10, top]


def _strength_figure(records: Records) -> Figure:
    labels = [f"{low:g} to {high:g}" for low, high in pairwise(COSINE_EDGES)]
    points = [
        _rate_point(
            matching(source_records, condition=f"{low}"), at=label, source=source, layer=layer
        )
        for layer, how in (("head", "update"), ("full", "first order"))
        for source in STYLES
        for source_records in [
            matching(records, panel="strength", layer=layer, how=how, source=source)
        ]
        for low, label in zip(COSINE_EDGES[:-1], labels, strict=True)
    ]
    x_axis = alt.X(
        "at:N", sort=labels, axis=alt.Axis(labelAngle=-35, title="cosine with the candidate")
    )
    return Figure(
        _line_chart(points, x_axis, "Boost Rate by coupling"),
        "Boost Rate by coupling strength",
        "Up to 16 tokens from each band of the cosine of output-layer gradients. Solid: output "
        "layer; dashed: all parameters, first order. Taken as they come, tokens of both signs "
        "cancel each other however strong the coupling.",
        SOURCE_KEYS,
    )


def _top_figure(records: Records, statistic: str) -> Figure:
    points = [
        _rate_point(
            matching(source_records, condition=top_count),
            at=int(top_count),
            source=source,
            layer=layer,
            mean=statistic == "mean",
        )
        for layer, how in (("head", "update"), ("full", "first order"))
        for source in STYLES
        for source_records in [matching(records, panel="top", layer=layer, how=how, source=source)]
        for top_count in sorted({record["condition"] for record in source_records}, key=int)
    ]
    x_axis = alt.X(
        "at:Q",
        scale=alt.Scale(type="log", base=2),
        axis=alt.Axis(
            title="masked tokens, strongest first", values=sorted({point["at"] for point in points})
        ),
    )
    title = "Mean Boost" if statistic == "mean" else "Boost Rate"
    return Figure(
        _line_chart(
            points, x_axis, f"{title} by number of masked tokens", share=statistic == "rate"
        ),
        f"{title} by number masked",
        ("In nats. " if statistic == "mean" else "")
        + "The tokens with the largest cosine, of all rollouts or of one sign. Solid: output "
        "layer; dashed: all parameters, first order.",
        SOURCE_KEYS,
    )


def _mixture_figure(records: Records) -> Figure:
    points = [
        _rate_point(
            matching(layer_records, condition=positive_share),
            at=float(positive_share),
            source="mixed",
            layer=layer,
        )
        for layer, how in (("head", "update"), ("full", "first order"))
        for layer_records in [matching(records, panel="mixture", layer=layer, how=how)]
        for positive_share in sorted({record["condition"] for record in layer_records}, key=float)
    ]
    x_axis = alt.X(
        "at:Q",
        axis=alt.Axis(
            format="%", title="masked tokens from positive rollouts", tickCount=5, tickMinStep=0
        ),
    )
    paper_guide = {"value": PAPER_TABLE["both", "full"][0]}
    return Figure(
        _line_chart(points, x_axis, "Boost Rate by share of positive tokens", guides=[paper_guide]),
        "Which mixture gives 75 %",
        "Boost Rate of four equal tokens of low confidence, by how many of them come from positive "
        "rollouts. Dotted: the paper's 75 %.",
        (("series", "output layer; dashed: all parameters, first order"),),
    )


def _line_chart(
    points: Records, x: alt.X, description: str, *, share: bool = True, guides: Records = ()
) -> alt.LayerChart:
    """One line per source, solid for the output layer, dashed for all parameters."""
    axis = alt.Axis(format="%") if share else alt.Axis(format="~g")
    scale = alt.Scale(domain=[0, 1]) if share else alt.Scale(nice=True)
    y_axis = alt.Y("value:Q", scale=scale, axis=axis)
    chance_rule = base_chart([{"value": 0.5 if share else 0.0}])
    # The guide of a rate is 50 %, chance; that of a mean is 0.
    layers = [chance_rule.mark_rule(style="line").encode(y=y_axis)]
    layers += [
        base_chart([guide]).mark_rule(style="muted", strokeDash=[2, 3]).encode(y=y_axis)
        for guide in guides
    ]
    for source, style in STYLES.items():
        for layer, dash in (("head", [1, 0]), ("full", [5, 4])):
            source_chart = base_chart(matching(points, source=source, layer=layer))
            if layer == "head":
                band = source_chart.mark_area(style=style, opacity=0.14).encode(
                    x=x, y=alt.Y("low:Q"), y2=alt.Y2("high:Q")
                )
                layers.append(band)
            layers.append(
                source_chart.mark_line(style=style, strokeDash=dash).encode(x=x, y=y_axis)
            )
            layers.append(
                source_chart.mark_point(style=style).encode(x=x, y=y_axis, tooltip=TOOLTIPS)
            )
    return alt.LayerChart(layer=layers, width="container", height=200, description=description)


TOOLTIPS = [
    alt.Tooltip("value:Q", title="value", format=".3~g"),
    alt.Tooltip("low:Q", title="from", format=".3~g"),
    alt.Tooltip("high:Q", title="to", format=".3~g"),
    alt.Tooltip("candidates:Q", title="candidates"),
]


def _rate_point(records: Records, *, mean: bool = False, **keys: object) -> Record:
    estimate = mean_boost(records) if mean else boost_rate(records)
    value, low, high = (None if np.isnan(bound) else bound for bound in estimate)
    return {**keys, "value": value, "low": low, "high": high, "candidates": len(records)}
