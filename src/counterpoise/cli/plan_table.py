"""A plan as a table in the terminal: one line per step, then a summary."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from counterpoise.plugins import display_name
from counterpoise.terminal import one_line


def plan_table(planned: dict[str, Any]) -> Group:
    """Render the result of `batch/plan_file.plan_file`."""
    summary = planned["describe"]
    table = Table(
        "step", "rows", "tokens", "positive", "cross-advantage", box=None, header_style="bold"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for step, (rows, tokens, positive_share, cross_advantage) in enumerate(
        zip(
            summary["rows_per_step"],
            summary["tokens_per_step"],
            summary["positive_share_per_step"],
            summary["cross_advantage_sum"],
            strict=True,
        ),
        start=1,  # numbered as in the report and in `poise look`
    ):
        table.add_row(
            str(step),
            f"{rows:,}",
            f"{tokens:,}",
            _percent(positive_share),
            f"{cross_advantage:+.2f}",
        )
    lines = [
        f"{one_line(display_name(planned['rule']))}: {summary['rows']:,} rows of "
        f"{summary['groups']:,} groups, "
        f"{summary['rows_without_signal']:,} without signal",
        f"groups split across steps   {summary['split_groups']:,} "
        f"({_percent(summary['split_share'])})",
        f"largest group advantage sum {summary['max_abs_group_advantage_sum']:.3f}   "
        "(whole groups: 0)",
        f"token imbalance             {summary['token_imbalance']:.4f}  (heaviest step over mean)",
        f"positive rows               {_percent(summary['positive_share'])}  (of rows with signal)",
        f"shared token types          {_percent(summary['shared_token_share'])}  "
        "(of those in positive rows, also in negative ones)",
        "",
        "cross-advantage: the sum of A_i A_j over pairs of rows of the same group in the step; the "
        "lower it is, the more of their common gradient cancels (eq. 14)",
    ]
    return Group(Text(lines[0], style="bold"), Text(), table, Text(), Text("\n".join(lines[1:])))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
