"""The page of `poise credit`: weightings in numbers, as histograms, and on every token."""

from __future__ import annotations

from pathlib import Path

from counterpoise.lab.credit_view.charts import histogram, residuals
from counterpoise.lab.credit_view.preferences import preferred
from counterpoise.lab.credit_view.result import Result
from counterpoise.lab.credit_view.token_strips import tokens
from counterpoise.report.charts.render import render
from counterpoise.report.pages.assemble import whole_page, write_page
from counterpoise.report.panels.panel import Panel

ASSETS = ("summary.css", "evaluation.css", "tokens.css", "credit.css")
TYPES = 8  # kinds of tokens on either side


def write_credit(result: Result, out: Path | None = None) -> Path:
    """Write the page; by default to RUN/credit.html."""
    stored = result.stored
    panels = {
        "summary": summary(result),
        "histograms": histograms(result),
        "tokens": tokens(result),
        "kinds": kinds(result),
    }
    title = f"{stored.name}, iteration {stored.iteration}"
    page = whole_page("Counterpoise token weights", title, panels)
    return write_page(out or stored.path / "credit.html", page)


def summary(result: Result) -> Panel:
    return Panel("", "", render("credit_summary.html", r=result), assets=ASSETS)


def histograms(result: Result) -> Panel:
    figures = [histogram(result.rows, one) for one in result.weighed]
    left = residuals(result)
    return Panel(
        "Weights",
        "Tokens of rollouts with a positive advantage above the line, of those with a negative one "
        "below it. The height goes with the root of the share of tokens, so that few can be seen "
        "beside many.",
        (*figures, left) if left else tuple(figures),
    )


def kinds(result: Result) -> Panel | None:
    """Which kinds of tokens get most and least; None where no weighting has a preference."""
    lines = []
    for one in result.weighed:
        most, least = preferred(result.rows, one.weights, TYPES)
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
