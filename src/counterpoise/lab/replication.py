"""The paper's claims on every model: the tables and the forest plot of docs/results/replication.md.

`poise study replication`, in a checkout of the repository, judges the stored records again, updates
docs/data/claims.csv (claims.py) and writes from it

    docs/results/replication.md      verdicts side by side; further numbers; the criteria
    docs/images/replication.svg      every effect with its interval, coloured by its verdict
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from counterpoise.errors import PoiseError
from counterpoise.files import atomic_write
from counterpoise.lab.claims import (
    CLAIMS,
    NOT_STORED,
    STUDIES_OF_CLAIMS,
    Claim,
    StoredRecords,
    interval_text,
    print_interval,
    read_claims,
    recompute_claim,
    write_claims,
)

if TYPE_CHECKING:
    import altair as alt

    from counterpoise.report.charts.figure import Figure

PAGE = Path("docs/results/replication.md")
PLOT = Path("docs/images/replication.svg")
BEGIN, END = "<!-- claims: written by `poise study replication` -->", "<!-- end of claims -->"


def write_replication(root: Path) -> tuple[Path, ...]:
    """Judge the records again, write table, page and plot; returns these files."""
    stored = StoredRecords(root)
    claims = [recompute_claim(claim, stored) for claim in read_claims(root / CLAIMS)]
    write_claims(root / CLAIMS, claims)
    text = (root / PAGE).read_text(encoding="utf-8")
    with atomic_write(root / PAGE) as temporary:
        temporary.write_text(page_with_tables(text, claims, stored), encoding="utf-8")
    from counterpoise.report.charts.figures import write_svg

    write_svg((forest_figure(claims),), root / PLOT)
    return root / CLAIMS, root / PAGE, root / PLOT


# -- tables ---------------------------------------------------------------------------------------


class SupportingNumber(NamedTuple):
    """A number that a study measures beside the one of its claim, as the page prints it."""

    claim: str  # number of the claim
    name: str  # in the study's finding
    label: str
    unit: str
    decimals: int = 0


SUPPORTING_NUMBERS = (
    SupportingNumber(
        "1", "flipped, of all moved tokens", "moved tokens that flip, both signs", "%"
    ),
    SupportingNumber(
        "1",
        "boosted, positive minus negative rollouts",
        "tokens that rise, positive minus negative rollouts",
        "points",
    ),
    SupportingNumber(
        "2",
        "flipped, positive rollouts, joint minus positive-only",
        "claim 2's number, minus the same in training on positive rollouts alone",
        "points",
    ),
    SupportingNumber(
        "2",
        "flipped, positive rollouts, joint, over the runs",
        "claim 2's number over a training run",
        "%",
    ),
    SupportingNumber(
        "2",
        "flipped, positive rollouts, positive-only, over the runs",
        "the same, trained on positive rollouts alone",
        "%",
    ),
    SupportingNumber(
        "3",
        "coupling by equal tokens, both of low confidence",
        "coupling between equal tokens that both have p <= 0.5",
        "%",
    ),
    SupportingNumber("3", "coupling by equal tokens", "coupling between equal tokens", "%"),
    SupportingNumber("3", "coupling by rivals", "coupling between rivals", "%"),
    SupportingNumber(
        "3",
        "part of phi that eq. 10 lacks, equal tokens",
        "of phi between equal tokens, what the printed eq. 10 leaves out",
        "%",
    ),
    SupportingNumber(
        "5",
        "change of template share, adamw",
        "template share, joint minus positive-only",
        "points",
        1,
    ),
    SupportingNumber(
        "5",
        "change of reasoning share, adamw",
        "reasoning share, joint minus positive-only",
        "points",
        1,
    ),
    SupportingNumber(
        "6",
        "gap of both signs, advantages shuffled within groups",
        "gap after a step on shuffled advantages",
        "",
        2,
    ),
    SupportingNumber(
        "6",
        "gap of both signs, among tokens of like probability",
        "gap among tokens of similar probability",
        "",
        2,
    ),
    SupportingNumber(
        "10",
        "noise, whole groups over cut by sign",
        "noise of whole groups over that of groups cut by sign",
        "times",
        2,
    ),
    SupportingNumber(
        "15",
        "mean change, specific tokens, joint, adamw",
        "rise of log p, tokens specific to success",
        "",
        3,
    ),
    SupportingNumber(
        "15",
        "mean change, shared tokens, joint, adamw",
        "rise of log p, tokens shared with failed rollouts",
        "",
        3,
    ),
    SupportingNumber(
        "16",
        "of which failed rollouts cause, matched by token",
        "claim 16's number, matched by token instead",
        "",
        3,
    ),
    SupportingNumber(
        "17",
        "the same with shuffled advantages",
        "claim 17's slope after a step on shuffled advantages",
        "",
        3,
    ),
)


def claims_tables(claims: Sequence[Claim], stored: StoredRecords) -> str:
    """Three tables: verdicts by model, further numbers by model, number and criterion."""
    by_number = [list(lines) for _, lines in groupby(claims, lambda claim: claim.number)]
    models = [claim.model for claim in by_number[0]]
    header = f"{'|'.join(models)}|"
    rule = "|---" * (len(models) + 1) + "|"
    lines = [f"|claim|{header}", rule]
    for same in by_number:
        title = f"{same[0].number}. {same[0].claim} ({same[0].figure})"
        lines.append(f"|{title}|{'|'.join(map(_claim_cell, same))}|")
    lines += ["", f"|also measured|{header}", rule]
    claims_by_number = {same[0].number: same for same in by_number}
    for supporting in SUPPORTING_NUMBERS:
        cells = (
            _supporting_cell(supporting, claim, stored)
            for claim in claims_by_number.get(supporting.claim, ())
        )
        lines.append(f"|{supporting.claim}. {supporting.label}|{'|'.join(cells)}|")
    lines += ["", "||the number|replicated if|", "|---|---|---|"]
    for first, *_ in by_number:
        mark = " *" if first.rule_fixed == "after the runs" else ""
        quantity = f"{first.quantity}, paper {first.paper}" if first.paper else first.quantity
        lines.append(f"|{first.number}|{quantity}|{first.criterion}{mark}|")
    return "\n".join(lines)


def _claim_cell(claim: Claim) -> str:
    return ", ".join(filter(None, (f"**{claim.verdict}**", claim.effect_text)))


def _supporting_cell(supporting: SupportingNumber, claim: Claim, stored: StoredRecords) -> str:
    if claim.record == NOT_STORED:
        return ""
    study, _ = STUDIES_OF_CLAIMS[claim.number]
    measured = stored.find_number(study, claim.record, supporting.name)
    printed = print_interval(measured, supporting.unit, supporting.decimals)
    return interval_text(printed, supporting.unit)


def page_with_tables(text: str, claims: Sequence[Claim], stored: StoredRecords) -> str:
    """The page with the tables between its two marks replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise PoiseError(f"{PAGE} has lost the marks between which the tables are written")
    return f"{before}{BEGIN}\n\n{claims_tables(claims, stored)}\n\n{END}{after}"


# -- plot -----------------------------------------------------------------------------------------

VERDICT_STYLES = {
    "replicated": "positive",
    "not replicated": "negative",
    "inconclusive": "muted",
    "untestable here": "soft",
    "not tested": "soft",
}
CHART_WIDTH, CHART_HEIGHT, COLUMNS = 300, 58, 2


def forest_figure(claims: Sequence[Claim]) -> Figure:
    """Every claim in a chart of its own, because their units differ."""
    import altair as alt

    from counterpoise.report.charts.figure import Figure

    charts = [_claim_chart(list(same)) for _, same in groupby(claims, lambda claim: claim.number)]
    chart = alt.concat(*charts, columns=COLUMNS, spacing=14).resolve_scale(x="independent")
    keys = (
        ("positive", "replicated"),
        ("negative", "not replicated"),
        ("muted", "inconclusive"),
        ("soft", "untestable here, not tested"),
        ("ink", "the paper's value"),
    )
    return Figure(chart, "The paper's claims on every model", keys=keys, wide=True)


def _claim_chart(claims: Sequence[Claim]) -> alt.LayerChart:
    import altair as alt

    from counterpoise.report.charts.series import base_chart

    points = [
        {
            "model": claim.model,
            "value": float(claim.effect),
            "low": float(claim.low) if claim.low else None,
            "high": float(claim.high) if claim.high else None,
            "style": VERDICT_STYLES[claim.verdict],
        }
        for claim in claims
        if claim.effect
    ]
    y = alt.Y(
        "model:N",
        sort=[claim.model for claim in claims],
        scale=alt.Scale(domain=[claim.model for claim in claims]),
        axis=alt.Axis(title=None, grid=False, minExtent=112, maxExtent=112),
    )
    unit = f" ({claims[0].unit})" if claims[0].unit else ""
    x = alt.X("value:Q", axis=alt.Axis(title=None, tickCount=5, tickMinStep=0, grid=True))
    layers = [base_chart([{"value": 0}]).mark_rule(style="muted", strokeDash=[2, 3]).encode(x=x)]
    for style in dict.fromkeys(point["style"] for point in points):
        same = [point for point in points if point["style"] == style]
        intervals = [point for point in same if point["low"] is not None]
        if intervals:
            rule = base_chart(intervals).mark_rule(style=str(style), strokeWidth=2)
            layers.append(rule.encode(x=alt.X("low:Q"), x2=alt.X2("high:Q"), y=y))
        dot = base_chart(same).mark_point(style=str(style), size=50, filled=True, opacity=1)
        layers.append(dot.encode(x=x, y=y))
    if claims[0].paper:
        paper = base_chart([{"value": float(claims[0].paper)}])
        layers.append(paper.mark_rule(style="ink", strokeWidth=2).encode(x=x))
    title = alt.Title(
        f"{claims[0].number}. {claims[0].claim}",
        subtitle=f"{claims[0].quantity}{unit}",
        fontSize=11,
        subtitleFontSize=10,
        anchor="start",
        offset=4,
    )
    return alt.LayerChart(
        layer=layers,
        width=CHART_WIDTH,
        height=CHART_HEIGHT,
        title=title,
    )
