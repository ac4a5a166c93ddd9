"""Charts of token weights: their histograms, and the credit left on shared prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np

from counterpoise.lab.credit_view.measure import WeightedRows
from counterpoise.lab.credit_view.result import CreditViewResult
from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.series import base_chart
from counterpoise.types import Row

BINS = 32
SIGNS = ((1, "positive", "A > 0"), (-1, "negative", "A < 0"))


def weight_histogram(rows: Sequence[Row], weighting: WeightedRows) -> Figure:
    """Histogram of the weights: tokens with A > 0 upward, tokens with A < 0 downward."""
    records = histogram_bins(rows, weighting)
    low, high = records[0]["left"], max(record["right"] for record in records)
    # The page's default ticks are whole iterations.
    ticks_x = alt.Axis(tickCount=6, tickMinStep=1e-6)
    x = alt.X("left:Q", scale=alt.Scale(domain=[low, high], nice=False), axis=ticks_x)
    # The axis is a square root, mirrored at 0, so that small shares stay visible.
    largest_share = max(record["share"] for record in records)
    ticks = [share for share in (0.01, 0.1, 0.25, 0.5, 1.0) if share <= max(largest_share, 0.01)]
    y = alt.Y(
        "height:Q",
        scale=alt.Scale(type="sqrt", domain=[-largest_share, largest_share], nice=False),
        axis=alt.Axis(
            values=[*(-share for share in reversed(ticks)), 0, *ticks],
            labelExpr="format(abs(datum.value), '.0%')",
        ),
    )
    tooltip = [
        alt.Tooltip("sign:N", title="rollouts"),
        alt.Tooltip("left:Q", title="w from", format=".3g"),
        alt.Tooltip("right:Q", title="to", format=".3g"),
        alt.Tooltip("share:Q", title="of their tokens", format=".1%"),
    ]
    bars = [
        base_chart([record for record in records if record["sign"] == name and record["share"]])
        .mark_bar(style=colour, binSpacing=0)
        .encode(x=x, x2=alt.X2("right:Q"), y=y, y2=alt.datum(0), tooltip=tooltip)
        for _, colour, name in SIGNS
    ]
    unit_rule = base_chart([{"left": 1.0}]).mark_rule(style="muted", strokeDash=[2, 3]).encode(x=x)
    chart = alt.LayerChart(
        layer=[*bars, unit_rule] if low <= 1 <= high else bars,
        width="container",
        height=150,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        description=f"Weights of {weighting.choice.label} from {low:.3g} to {high:.3g}",
    )
    keys = tuple((colour, name) for _, colour, name in SIGNS)
    return Figure(chart, title=weighting.choice.label, keys=keys)


def histogram_bins(rows: Sequence[Row], weighting: WeightedRows) -> list[dict[str, Any]]:
    """One record per bin and sign; the height is the share of tokens, negative where A < 0."""
    w_N = np.concatenate(weighting.weights).astype(np.float64)
    sign_N = np.repeat([row.sign for row in rows], [row.num_tokens for row in rows])
    low, high = float(w_N.min()), float(w_N.max())
    if high - low < 1e-9:  # all equal: one bar in the middle
        low, high = low - 0.5, high + 0.5
    # Both signs share their bins, so that bars above and below the line can be compared.
    edges = np.linspace(low, high, BINS + 1)
    records = []
    for sign, _, name in SIGNS:
        counts, _ = np.histogram(w_N[sign_N == sign], edges)
        shares = counts / max(1, counts.sum())
        records += [
            {"left": lower, "right": upper, "share": share, "height": sign * share, "sign": name}
            for lower, upper, share in zip(
                edges[:-1].tolist(), edges[1:].tolist(), shares.tolist(), strict=True
            )
        ]
    return records


def residual_chart(result: CreditViewResult) -> Figure | None:
    """A bar per weighting and a line for uniform weights; None where no rollouts share a prefix."""
    uniform_residual = result.uniform.residual
    if uniform_residual is None:
        return None
    records = [
        {
            "label": weighting.choice.label,
            "residual": weighting.statistics.residual,
            "uniform": uniform_residual,
        }
        for weighting in result.weightings
        if weighting.statistics.residual is not None
    ]
    unit_scale = alt.Scale(domain=[0, 1])
    x = alt.X(
        "residual:Q", scale=unit_scale, axis=alt.Axis(tickCount=5, tickMinStep=0.1, grid=True)
    )
    y = alt.Y("label:N", sort=None, axis=alt.Axis(minExtent=0, maxExtent=260, labelLimit=260))
    tooltip = [
        alt.Tooltip("label:N", title="weights"),
        alt.Tooltip("residual:Q", format=".3f"),
        alt.Tooltip("uniform:Q", title="of uniform weights", format=".3f"),
    ]
    bars = base_chart(records).mark_bar(style="series", height=12).encode(x=x, y=y, tooltip=tooltip)
    line = (
        base_chart([{"residual": uniform_residual}])
        .mark_rule(style="negative", strokeDash=[4, 3])
        .encode(x=x)
    )
    chart = alt.LayerChart(
        layer=[bars, line],
        width="container",
        height=26 * len(records) + 4,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        description="Credit left on shared prefixes; with uniform weights it is "
        f"{uniform_residual:.3f}",
    )
    return Figure(
        chart,
        title="Credit left on shared prefixes",
        note="|sum of A w| / sum of |A w| where rollouts of a prompt share a prefix (A: advantage, "
        "w: weight), taking the iteration as one optimizer step. At 0 credit and blame cancel; at "
        f"1 all have the same sign. Dashed: uniform weights, {uniform_residual:.2f}.",
        wide=True,
    )
