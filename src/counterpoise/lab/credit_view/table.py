"""`poise credit` in the terminal: a line a weighting, what each prefers, how alike they are."""

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
TYPES_SHOWN = 6  # types on either side
FINE_SPREAD = 0.05  # a spread below which means differ late
BLUE, ORANGE = "#3b82d6", "#c8621a"  # as `poise look` has them, for more and for less


def credit_table(result: CreditViewResult) -> RenderableType:
    parts: list[RenderableType] = [_about(result), Text(), _numbers(result)]
    parts += [Text(), _meaning(), Text(), _preferred(result)]
    if len(result.weighed) > 1:
        parts += [Text(), _agreement(result)]
    return Group(*parts)


def _about(result: CreditViewResult) -> Text:
    stored = result.stored
    about = Text(one_line(f"{stored.path}, iteration {stored.iteration}"), style="bold")
    wrong = len(result.rows) - result.right
    about.append(
        f"\n{result.rollouts} rollouts of {len(stored.groups)} prompts, {len(result.rows)} with "
        f"signal ({result.right} with A > 0, {wrong} with A < 0), {result.tokens:,} tokens; "
        f"advantage {stored.config.credit.name}",
        style="not bold",
    )
    if result.read_by:
        about.append(f"\nread by the {result.read_by}", style="not bold")
    return about


def _numbers(result: CreditViewResult) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, collapse_padding=True)
    table.add_column("weights", overflow="fold", min_width=12)
    for name in ("w+", "w-", "spread", "range", "at 0", "at 1", "half", "residual", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in result.weighed:
        table.add_row(Text(one_line(one.asked.label)), *_line(one.numbers), f"{one.seconds:.2f}")
    if all(one.asked.name != "uniform" for one in result.weighed):
        table.add_row("(uniform)", *_line(result.uniform), "", style="dim")
    return table


def _line(n: WeightStatistics) -> list[str]:
    means = ("-" if m is None else f"{m:.2f}" for m in (n.mean_positive, n.mean_negative))
    shares = (f"{100 * share:.0f} %" for share in (n.zeros, n.ones, n.half))
    left = "-" if n.residual is None else f"{n.residual:.2f}"
    return [*means, f"{n.spread:.2f}", f"{n.lowest:.2f}..{n.highest:.2f}", *shares, left]


def _meaning() -> Text:
    return Text(
        "w+, w-: mean where A > 0, A < 0. half: tokens that carry half of sum |A w|. residual: "
        "what is left of A w on prefixes that rollouts of a group share; 0 all cancels, 1 "
        "one-sided. s: seconds, without the policy's pass over the rollouts.",
        style="dim",
    )


def _preferred(result: CreditViewResult) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("weights", overflow="fold")
    table.add_column("most on (mean w)", ratio=1, style=BLUE)
    table.add_column("least on", ratio=1, style=ORANGE)
    for one in result.weighed:
        most, least = preferred_types(result.rows, one.weights, TYPES_SHOWN)
        digits = 2 if one.numbers.spread >= FINE_SPREAD else 4
        sides = (_types(result, types, digits) for types in (most, least))
        table.add_row(Text(one_line(one.asked.label)), *sides)
    return table


def _types(result: CreditViewResult, types: list[TokenType], digits: int) -> RenderableType:
    said = [Text(f"{_text(result, one.token)} {one.mean:.{digits}f}") for one in types]
    return Columns(said, padding=(0, 2)) if said else Text("no kind of token", style="dim")


def _text(result: CreditViewResult, token: int) -> str:
    shown = show_blanks(result.vocabulary[token], alone=True)
    return shown[:MAX_TOKEN_CHARACTERS] + "…" if len(shown) > MAX_TOKEN_CHARACTERS else shown


def _agreement(result: CreditViewResult) -> Table:
    """Rank correlations: the half of the table that says something."""
    labels = [one.asked.label for one in result.weighed]
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("rank correlation", overflow="fold")
    for number in range(1, len(labels)):
        table.add_column(str(number), justify="right")
    for number, (label, line) in enumerate(zip(labels, result.agreement, strict=True), 1):
        shown = ["-" if rho is None else f"{rho:.2f}" for rho in line[: number - 1]]
        table.add_row(Text(one_line(f"{number} {label}")), *shown)
    return table
