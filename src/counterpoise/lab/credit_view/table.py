"""`poise credit` in the terminal: statistics, preferred tokens and agreement of weightings."""

from __future__ import annotations

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from counterpoise.lab.credit_view.measure import WeightStatistics
from counterpoise.lab.credit_view.preferences import TokenType, preferred_types
from counterpoise.lab.credit_view.result import CreditViewResult
from counterpoise.report.charts.render import show_blanks
from counterpoise.terminal import one_line

MAX_TOKEN_CHARACTERS = 14  # characters of a token
TYPES_SHOWN = 6  # tokens listed on either side
FINE_SPREAD = 0.05  # with a smaller spread, means need four digits to differ
BLUE, ORANGE = "#3b82d6", "#c8621a"  # for more and for less weight, as in `poise look`


def credit_table(result: CreditViewResult) -> RenderableType:
    blocks: list[RenderableType] = [_about(result), Text(), _numbers(result)]
    blocks += [Text(), _meaning(), Text(), _preferred(result)]
    if len(result.weightings) > 1:
        blocks += [Text(), _agreement(result)]
    return Group(*blocks)


def _about(result: CreditViewResult) -> Text:
    source = result.source
    heading = Text(one_line(f"{source.path}, iteration {source.iteration}"), style="bold")
    num_negative = len(result.rows) - result.num_positive
    heading.append(
        f"\n{result.rollouts} rollouts of {len(source.groups)} prompts, {len(result.rows)} with "
        f"signal ({result.num_positive} with A > 0, {num_negative} with A < 0), "
        f"{result.tokens:,} tokens; advantage {source.advantage}",
        style="not bold",
    )
    if result.scored_by:
        heading.append(f"\nscored by the {result.scored_by}", style="not bold")
    return heading


def _numbers(result: CreditViewResult) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, collapse_padding=True)
    table.add_column("weights", overflow="fold", min_width=12)
    for name in ("w+", "w-", "spread", "range", "at 0", "at 1", "half", "residual", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    for weighting in result.weightings:
        table.add_row(
            Text(one_line(weighting.choice.label)),
            *_line(weighting.statistics),
            f"{weighting.seconds:.2f}",
        )
    if all(weighting.choice.name != "uniform" for weighting in result.weightings):
        table.add_row("(uniform)", *_line(result.uniform), "", style="dim")
    return table


def _line(statistics: WeightStatistics) -> list[str]:
    means = (
        "-" if mean is None else f"{mean:.2f}"
        for mean in (statistics.mean_positive, statistics.mean_negative)
    )
    shares = (
        f"{100 * share:.0f} %" for share in (statistics.zeros, statistics.ones, statistics.half)
    )
    residual = "-" if statistics.residual is None else f"{statistics.residual:.2f}"
    return [
        *means,
        f"{statistics.spread:.2f}",
        f"{statistics.lowest:.2f}..{statistics.highest:.2f}",
        *shares,
        residual,
    ]


def _meaning() -> Text:
    return Text(
        "w+, w-: mean weight where the advantage A > 0, A < 0. at 0, at 1: share of tokens with "
        "that weight. half: smallest share of tokens that carries half of sum |A w|. residual: "
        "|sum A w| / sum |A w| on prefixes that rollouts of a prompt share; 0 cancels, 1 all of "
        "one sign. s: seconds, without the policy's forward pass over the rollouts.",
        style="dim",
    )


def _preferred(result: CreditViewResult) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("weights", overflow="fold")
    table.add_column("most weight on (mean w)", ratio=1, style=BLUE)
    table.add_column("least weight on", ratio=1, style=ORANGE)
    for weighting in result.weightings:
        most, least = preferred_types(result.rows, weighting.weights, TYPES_SHOWN)
        digits = 2 if weighting.statistics.spread >= FINE_SPREAD else 4
        sides = (_types(result, types, digits) for types in (most, least))
        table.add_row(Text(one_line(weighting.choice.label)), *sides)
    return table


def _types(result: CreditViewResult, types: list[TokenType], digits: int) -> RenderableType:
    cells = [
        Text(f"{_text(result, token_type.token)} {token_type.mean:.{digits}f}")
        for token_type in types
    ]
    return Columns(cells, padding=(0, 2)) if cells else Text("none", style="dim")


def _text(result: CreditViewResult, token: int) -> str:
    text = show_blanks(result.vocabulary[token], alone=True)
    return text[:MAX_TOKEN_CHARACTERS] + "…" if len(text) > MAX_TOKEN_CHARACTERS else text


def _agreement(result: CreditViewResult) -> Table:
    """Rank correlations, the lower half of the symmetric table."""
    labels = [weighting.choice.label for weighting in result.weightings]
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("rank correlation", overflow="fold")
    for number in range(1, len(labels)):
        table.add_column(str(number), justify="right")
    for number, (label, correlations) in enumerate(zip(labels, result.agreement, strict=True), 1):
        cells = ["-" if rho is None else f"{rho:.2f}" for rho in correlations[: number - 1]]
        table.add_row(Text(one_line(f"{number} {label}")), *cells)
    return table
