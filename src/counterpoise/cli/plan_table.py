"""A plan as a table in the terminal: one line a step, then what the numbers say."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from counterpoise.plugins import shown
from counterpoise.terminal import one_line


def plan_table(planned: dict[str, Any]) -> Group:
    """Render what `batch/plan_rollouts.plan_file` returns."""
    d = planned["describe"]
    table = Table(
        "step", "rows", "tokens", "positive", "cross-advantage", box=None, header_style="bold"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for step, (rows, tokens, share, cross) in enumerate(
        zip(
            d["rows_per_step"],
            d["tokens_per_step"],
            d["positive_share_per_step"],
            d["cross_advantage_sum"],
            strict=True,
        ),
        start=1,  # as in the report and in `poise look`
    ):
        table.add_row(str(step), f"{rows:,}", f"{tokens:,}", _percent(share), f"{cross:+.2f}")
    lines = [
        f"{one_line(shown(planned['rule']))}: {d['rows']:,} rows of {d['groups']:,} groups, "
        f"{d['rows_without_signal']:,} without signal",
        f"groups split across steps   {d['split_groups']:,} ({_percent(d['split_share'])})",
        f"largest |sum of advantages| {d['max_abs_group_advantage_sum']:.3f}   (whole groups: 0)",
        f"token imbalance             {d['token_imbalance']:.4f}  (heaviest step over mean)",
        f"positive rows with signal   {_percent(d['positive_share'])}",
        f"shared token types          {_percent(d['shared_token_share'])}",
        "",
        "cross-advantage: sum of A_i A_j, i and j two rows of a group in the step; the lower, the "
        "more of what they share cancels (eq. 14)",
    ]
    return Group(Text(lines[0], style="bold"), Text(), table, Text(), Text("\n".join(lines[1:])))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
