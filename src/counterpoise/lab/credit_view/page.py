"""The page of `poise credit`: weightings as a table, as histograms, and on every token."""

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
TYPES = 8  # distinct tokens listed on either side


def write_credit_page(result: CreditViewResult, out: Path | None = None) -> Path:
    """Write the page; by default to RUN/credit.html."""
    source = result.source
    panels = {
        "summary": summary_panel(result),
        "histograms": histograms_panel(result),
        "tokens": tokens_panel(result),
        "kinds": token_types_panel(result),
    }
    title = f"{source.name}, iteration {source.iteration}"
    html = assemble_page("Counterpoise token weights", title, panels)
    return write_page(out or source.path / "credit.html", html)


def summary_panel(result: CreditViewResult) -> Panel:
    return Panel("", "", render("credit_summary.html", result=result), assets=ASSETS)


def histograms_panel(result: CreditViewResult) -> Panel:
    figures = [weight_histogram(result.rows, weighting) for weighting in result.weightings]
    residual_figure = residual_chart(result)
    return Panel(
        "Weights",
        "Tokens of rollouts with a positive advantage are above the line, those with a negative "
        "one below it. The height is the square root of the share of tokens, so that small shares "
        "stay visible.",
        (*figures, residual_figure) if residual_figure else tuple(figures),
    )


def token_types_panel(result: CreditViewResult) -> Panel | None:
    """Panel of the tokens that get most and least weight; None where no weighting prefers any."""
    lines = []
    for weighting in result.weightings:
        most, least = preferred_types(result.rows, weighting.weights, TYPES)
        if most or least:
            texts = [
                [(result.vocabulary[token_type.token], token_type) for token_type in side]
                for side in (most, least)
            ]
            lines.append((weighting.choice.label, *texts))
    if not lines:
        return None
    return Panel(
        "Most and least weighted tokens",
        "Mean weight over all occurrences of a token id, for ids that are frequent.",
        render("credit_kinds.html", lines=lines),
        assets=ASSETS,
    )
