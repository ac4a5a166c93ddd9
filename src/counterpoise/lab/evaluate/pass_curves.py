"""Panel of pass@k and maj@k against k: the gain from more samples."""

from __future__ import annotations

from typing import Any

from counterpoise.lab.evaluate.summary import EvaluationSummary
from counterpoise.report.charts.figure import Figure
from counterpoise.report.panels.panel import Panel
from counterpoise.report.texts import make_visible

# Colours of page.css; the eight lines of a sweep over two models have one each.
HUES = ("positive", "negative", "green", "violet", "gold", "muted", "ink", "soft")


def pass_curves_panel(summary: EvaluationSummary) -> Panel | None:
    """A chart per benchmark; None where every problem was sampled only once, or graded."""
    figures = []
    for name in summary.benchmarks:
        records = _records(summary, name)
        if len({record["k"] for record in records}) > 1:
            figures.append(Figure(_chart(records), title=summary.titles[name], keys=_keys(records)))
    if not figures:
        return None
    return Panel(
        "More samples",
        "pass@k (solid): the chance that one of k samples is right. maj@k (dashed): the chance "
        "that their most frequent answer is right. Bands are 95 % intervals over problems.",
        tuple(figures),
    )


def _records(summary: EvaluationSummary, name: str) -> list[dict[str, Any]]:
    records = []
    for line_index, line in enumerate(summary.lines):
        score = line.scores.get(name)
        if score is None:
            continue
        label = f"{line.model} {line.setting}" if summary.has_sweep else line.model
        for kind, estimates in (("pass@k", score.pass_at), ("maj@k", score.maj_at)):
            records += [
                {
                    "k": k,
                    "value": estimate.mean,
                    "low": estimate.low,
                    "high": estimate.high,
                    "kind": kind,
                    "model": make_visible(label, 40),
                    "hue": HUES[line_index % len(HUES)],
                    "line": line_index,
                }
                for k, estimate in estimates.items()
            ]
    return records


def _keys(records: list[dict[str, Any]]) -> tuple[tuple[str, str], ...]:
    return tuple(dict.fromkeys((record["hue"], record["model"]) for record in records))


def _chart(records: list[dict[str, Any]]) -> Any:
    import altair as alt

    hues = list(dict.fromkeys(record["hue"] for record in records))
    colour = (
        alt.Color("hue:N").scale(domain=hues, range=[f"var(--{hue})" for hue in hues]).legend(None)
    )
    x = (
        alt.X("k:Q")
        .scale(type="log", base=2, nice=False)
        .axis(values=sorted({record["k"] for record in records}))
    )
    tooltip = [
        alt.Tooltip("model:N"),
        alt.Tooltip("kind:N", title=" "),
        alt.Tooltip("k:Q"),
        alt.Tooltip("value:Q", format=".1%"),
        alt.Tooltip("low:Q", format=".1%"),
        alt.Tooltip("high:Q", format=".1%"),
    ]
    base = alt.Chart(alt.Data(values=records))
    # Lines that share a colour must not be drawn as one.
    detail = alt.Detail(["kind:N", "line:N"])
    # Only pass@k has a band: two overlapping bands per model would be unreadable.
    band = base.mark_area(opacity=0.12).encode(
        x, alt.Y("low:Q").axis(format="%"), alt.Y2("high:Q"), colour, detail
    ).transform_filter("datum.kind == 'pass@k'")  # fmt: skip
    dash = alt.StrokeDash("kind:N").scale(domain=["pass@k", "maj@k"], range=[[1, 0], [5, 4]])
    line = base.mark_line().encode(x, alt.Y("value:Q"), colour, detail, dash.legend(None))
    point = base.mark_point().encode(x, alt.Y("value:Q"), colour, tooltip=tooltip)
    return alt.layer(band, line, point).properties(width="container", height=180)
