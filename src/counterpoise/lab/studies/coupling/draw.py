"""Charts of the coupling study (Fig. 2)."""

from __future__ import annotations

from itertools import pairwise

import altair as alt
import numpy as np

from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.series import base_chart
from counterpoise.statistics.finding import Record, Records

ENTROPY_BINS = 10  # of entropy, by rank
KINDS_AS_DRAWN = ("equal", "rival", "different")  # from top to bottom
KEYS = (("series", "equal tokens"), ("soft", "different tokens"))
SHADES = alt.Scale(domain=[0, 1], range=[0, 1])
CONFIDENCE = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


def draw(records: Records) -> tuple[Figure, ...]:
    sampled = [record for record in records if record["panel"] == "pairs"]
    cells = [record for record in records if record["panel"] == "cells"]
    return (
        _similarity(sampled),
        _phi(sampled),
        _entropy(cells),
        _concentration(cells),
        _left_out(sampled),
    )


def _similarity(sampled: Records) -> Figure:
    values = {
        kind: [record["cosine"] for record in sampled if record["kind"] == kind]
        for kind in ("equal", "different")
    }
    edges = np.linspace(min(map(min, values.values())), 1.0, 51)
    x_axis = alt.X("x:Q", axis=alt.Axis(title="cosine of hidden states", tickMinStep=0.1))
    y_axis = alt.Y("share:Q", axis=alt.Axis(format="%"), stack=None)
    layers = [base_chart([{"x": 0}]).mark_rule(style="line").encode(x=x_axis)]
    for kind, style in (("different", "soft"), ("equal", "series")):
        share_by_bin = np.histogram(values[kind], edges)[0] / len(values[kind])
        steps = [
            {"x": float(edge), "share": float(height)}
            for edge, height in zip(edges, [*share_by_bin, 0.0], strict=True)
        ]
        histogram = base_chart(steps)
        layers += [
            histogram.mark_area(style=style, opacity=0.3, interpolate="step-after").encode(
                x=x_axis, y=y_axis
            ),
            histogram.mark_line(style=style, interpolate="step-after").encode(x=x_axis, y=y_axis),
        ]
    return Figure(
        _layered(layers, "Cosine of hidden states of two tokens"),
        "Hidden states",
        "Cosine between the hidden states of two tokens: share of sampled pairs.",
        KEYS,
    )


def _phi(sampled: Records) -> Figure:
    """Share of larger values, on a logarithmic axis: most values are nearly 0, and few matter."""
    grid = np.logspace(-6, 0.3, 64)
    layers = []
    for kind, style in (("different", "soft"), ("equal", "series")):
        sizes = np.sort([abs(record["phi"]) for record in sampled if record["kind"] == kind])
        share_above = 1 - np.searchsorted(sizes, grid) / len(sizes)
        curve_points = [
            {"x": float(size), "share": float(height)}
            for size, height in zip(grid, share_above, strict=True)
        ]
        layers.append(
            base_chart(curve_points)
            .mark_line(style=style)
            .encode(
                x=alt.X(
                    "x:Q",
                    scale=alt.Scale(type="log", domain=[1e-6, 2], nice=False),
                    axis=alt.Axis(
                        title="|phi|", format="~g", tickMinStep=0, values=[1e-6, 1e-4, 0.01, 1]
                    ),
                ),
                y=alt.Y("share:Q", axis=alt.Axis(format="%")),
            )
        )
    return Figure(
        _layered(layers, "Share of pairs with a larger phi"),
        "Output factor",
        "Share of sampled pairs whose |phi| is larger than x. Most pairs do not couple at all; "
        "those that do are mostly equal tokens.",
        KEYS,
    )


def _entropy(cells: Records) -> Figure:
    strength = np.zeros((ENTROPY_BINS, ENTROPY_BINS))
    pair_counts = np.zeros_like(strength)
    for record in cells:
        strength[record["entropy_j"], record["entropy_k"]] += record["strength"]
        pair_counts[record["entropy_j"], record["entropy_k"]] += record["pairs"]
    cell_means = [
        {
            "j": bin_j + 1,
            "k": bin_k + 1,
            "mean": float(strength[bin_j, bin_k] / pair_counts[bin_j, bin_k]),
        }
        for bin_j in range(ENTROPY_BINS)
        for bin_k in range(ENTROPY_BINS)
        if pair_counts[bin_j, bin_k] and strength[bin_j, bin_k] > 0
    ]
    largest_mean = max(cell["mean"] for cell in cell_means)
    # Six orders of magnitude from the largest mean down to white.
    shaded = [
        {**cell, "shade": float(max(0.0, 1 + np.log10(cell["mean"] / largest_mean) / 6))}
        for cell in cell_means
    ]
    heat_map = (
        base_chart(shaded)
        .mark_rect(style="series")
        .encode(
            x=alt.X("k:O", axis=alt.Axis(title="entropy of the token that pushes", labelAngle=0)),
            y=alt.Y("j:O", sort="descending", axis=alt.Axis(title="of the token pushed")),
            opacity=alt.Opacity("shade:Q", scale=SHADES, legend=None),
            tooltip=[alt.Tooltip("mean:Q", title="mean coupling", format=".3~g")],
        )
    )
    return Figure(
        heat_map.properties(
            width="container", height=300, description="Coupling by entropy of both"
        ),
        "Coupling by entropy",
        "Mean |A_k <h_j, h_k> phi_jk| over all pairs, by tenths of the batch from the lowest "
        "entropy (1) to the highest (10). Shade is logarithmic: white is a millionth of the "
        "darkest, or less.",
    )


def _concentration(cells: Records) -> Figure:
    low_labels = {2: "both low", 1: "one low", 0: "none low"}
    order = [f"{kind}, {low_label}" for kind in KINDS_AS_DRAWN for low_label in low_labels.values()]
    y_axis = alt.Y("row:N", sort=order, axis=alt.Axis(minExtent=0, maxExtent=140))
    layers = []
    for column, style, offset in (("strength", "series", -5), ("pairs", "soft", 5)):
        total = sum(record[column] for record in cells)
        bars = [
            {
                "row": f"{kind}, {low_label}",
                "share": sum(record[column] for record in cell_records) / total,
            }
            for kind in KINDS_AS_DRAWN
            for low_count, low_label in low_labels.items()
            for cell_records in [
                [
                    record
                    for record in cells
                    if record["kind"] == kind and record["low"] == low_count
                ]
            ]
        ]
        axis = alt.Axis(
            format="%", tickCount=5, tickMinStep=0, grid=True, domain=False, title="share"
        )
        bar_chart = base_chart(bars).mark_bar(style=style, size=9, yOffset=offset)
        layers.append(bar_chart.encode(x=alt.X("share:Q", axis=axis), y=y_axis))
    return Figure(
        alt.LayerChart(
            layer=layers, width="container", height=300, description="Where the coupling lies"
        ),
        "Where the coupling lies",
        "Share of all pairs and of all coupling, by whether the two tokens are equal, rivals (one "
        "had a probability of at least 5 % in the other's place) or otherwise different, and by "
        "how many of them are of low confidence.",
        (("series", "of coupling"), ("soft", "of pairs")),
    )


def _left_out(sampled: Records) -> Figure:
    equal_pairs = [record for record in sampled if record["kind"] == "equal"]
    points: list[Record] = []
    for low, high in pairwise(CONFIDENCE):
        bin_records = [
            record
            for record in equal_pairs
            if low < record["confidence"] <= high and record["phi"] > 1e-9
        ]
        if len(bin_records) < 20:
            continue
        missing_shares = np.array([1 - record["printed"] / record["phi"] for record in bin_records])
        quartile_1, median, quartile_3 = np.quantile(missing_shares, (0.25, 0.5, 0.75))
        points.append(
            {
                "at": f"{low:g} to {high:g}",
                "low": float(quartile_1),
                "value": float(median),
                "high": float(quartile_3),
            }
        )
    x_axis = alt.X(
        "at:N",
        sort=[point["at"] for point in points],
        axis=alt.Axis(title="larger probability of the two", labelAngle=-35),
    )
    y_axis = alt.Y("value:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%"))
    points_chart = base_chart(points)
    return Figure(
        _layered(
            [
                points_chart.mark_rule(style="series", strokeWidth=1.5).encode(
                    x=x_axis, y=alt.Y("low:Q"), y2=alt.Y2("high:Q")
                ),
                points_chart.mark_point(style="series", size=55).encode(x=x_axis, y=y_axis),
            ],
            "Part of phi that eq. 10 lacks",
        ),
        "What eq. 10 lacks",
        "Part of phi between equal tokens that comes from the alternatives they share, and is "
        "missing in the printed formula: median and quartiles over pairs.",
    )


def _layered(layers: list[alt.Chart], description: str) -> alt.LayerChart:
    return alt.LayerChart(layer=layers, width="container", height=200, description=description)
