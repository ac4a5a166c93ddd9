"""The page of `poise credit`: weightings in numbers, as histograms, and on every token."""

from __future__ import annotations

from pathlib import Path

from counterpoise.lab.credit_view.charts import residual_chart, weight_histogram
from counterpoise.lab.credit_view.preferences import preferred_types
from counterpoise.lab.credit_view.result import CreditViewResult
from counterpoise.lab.credit_view.token_strips import tokens_panel
from counterpoise.report.charts.render import render
from counterpoise.report.pages.assemble import assemble_page, write_page
from counterpoise.report.panels.panel import Panel

ASSETS = ("summary.css", "evaluation.css", "tokens.css", "credit.css")
TYPES = 8  # kinds of tokens on either side


def write_credit_page(result: CreditViewResult, out: Path | None = None) -> Path:
    """Write the page; by default to RUN/credit.html."""
    stored = result.stored
    panels = {
        "summary": summary_panel(result),
        "histograms": histograms_panel(result),
        "tokens": tokens_panel(result),
        "kinds": token_types_panel(result),
    }
    title = f"{stored.name}, iteration {stored.iteration}"
    page = assemble_page("Counterpoise token weights", title, panels)
    return write_page(out or stored.path / "credit.html", page)


def summary_panel(result: CreditViewResult) -> Panel:
    return Panel("", "", render("credit_summary.html", r=result), assets=ASSETS)


def histograms_panel(result: CreditViewResult) -> Panel:
    figures = [weight_histogram(result.rows, one) for one in result.weighed]
    left = residual_chart(result)
    return Panel(
        "Weights",
        "Tokens of rollouts with a positive advantage above the line, of those with a negative one "
        "below it. The height goes with the root of the share of tokens, so that few can be seen "
        "beside many.",
        (*figures, left) if left else tuple(figures),
    )


def token_types_panel(result: CreditViewResult) -> Panel | None:
    """Which kinds of tokens get most and least; None where no weighting has a preference."""
    lines = []
    for one in result.weighed:
        most, least = preferred_types(result.rows, one.weights, TYPES)
        if most or least:
            texts = [[(result.vocabulary[t.token], t) for t in side] for side in (most, least)]
            lines.append((one.asked.label, *texts))
    if not lines:
        return None
    return Panel(
        "Kinds of tokens",
        "Mean weight of all tokens of a kind, of those kinds that are frequent.",
        render("credit_kinds.html", lines=lines),
        assets=ASSETS,
    )
