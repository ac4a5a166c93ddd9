"""pass@k and maj@k against k: what more samples are worth, with a judge and by their vote."""

from __future__ import annotations

from typing import Any

from counterpoise.lab.evaluate.summary import EvaluationSummary
from counterpoise.report.panels.panel import Figure, Panel
from counterpoise.report.texts import make_visible

HUES = ("positive", "negative", "green", "violet", "gold", "muted")


def pass_curves_panel(summary: EvaluationSummary) -> Panel | None:
    """None where every problem was asked once."""
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
    for number, line in enumerate(summary.lines):
        one = line.scores.get(name)
        if one is None:
            continue
        label = f"{line.model} {line.setting}" if summary.swept else line.model
        for kind, found in (("pass@k", one.pass_at), ("maj@k", one.maj_at)):
            records += [
                {
                    "k": k, "value": e.mean, "low": e.low, "high": e.high, "kind": kind,
                    "model": make_visible(label, 40), "hue": HUES[number % len(HUES)],
                }
                for k, e in found.items()
            ]  # fmt: skip
    return records


def _keys(records: list[dict[str, Any]]) -> tuple[tuple[str, str], ...]:
    return tuple(dict.fromkeys((record["hue"], record["model"]) for record in records))


def _chart(records: list[dict[str, Any]]) -> Any:
    import altair as alt

    hues = list(dict.fromkeys(record["hue"] for record in records))
    colour = alt.Color("hue:N").scale(domain=hues, range=[f"var(--{h})" for h in hues]).legend(None)
    x = (
        alt.X("k:Q")
        .scale(type="log", base=2, nice=False)
        .axis(values=sorted({r["k"] for r in records}))
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
    band = base.mark_area(opacity=0.12).encode(
        x, alt.Y("low:Q").axis(format="%"), alt.Y2("high:Q"), colour, alt.Detail("kind:N")
    ).transform_filter("datum.kind == 'pass@k'")  # fmt: skip
    dash = alt.StrokeDash("kind:N").scale(domain=["pass@k", "maj@k"], range=[[1, 0], [5, 4]])
    line = base.mark_line().encode(x, alt.Y("value:Q"), colour, dash.legend(None))
    point = base.mark_point().encode(x, alt.Y("value:Q"), colour, tooltip=tooltip)
    return alt.layer(band, line, point).properties(width="container", height=180)
