"""What `poise replay` prints: its progress, and the replayed plans beside those of QB and RB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.table import Table

from counterpoise.cli.progress_display import LiveDisplay
from counterpoise.config import RunConfig
from counterpoise.lab.replay.run import ReplayObserver
from counterpoise.terminal import one_line

PLAN_TITLES = {"own": "replayed", "grouped": "QB", "balanced": "RB"}
# Field of alternatives.jsonl -> (row of the table, format)
ROWS = {
    "rows": ("rows of an update", "{:.1f}"),
    "split_groups": ("groups split", "{:.1f}"),
    "max_abs_group_advantage_sum": ("largest group advantage sum", "{:.2f}"),
    "rarer_sign": ("least share of the rarer sign in a step", "{:.0%}"),
    "token_imbalance": ("heaviest step / mean", "{:.2f}"),
    "flipped": ("tokens moved against their advantage", "{:.1%}"),
    "cancellation": ("cancelled push", "{:.1%}"),
    "same_direction": ("tokens moved as in the replayed update", "{:.1%}"),
    "correlation": ("correlation of displacements", "{:.2f}"),
}


class ReplayDisplay(LiveDisplay, ReplayObserver):
    """Progress of a replay: a bar on a terminal, a line for each iteration elsewhere."""

    def on_start(self, config: RunConfig, parameters: int, iteration: int) -> None:
        self.console.print(
            f"{one_line(config.model.name)} ({parameters / 1e6:.1f} M parameters)",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        self.progress.start()

    def set_total(self, total: int, completed: int) -> None:
        """How many iterations are replayed, and how many of them are done."""
        self.total, self.completed = total, completed
        self.progress.update(self.task, total=total, completed=completed)

    def on_iteration(self, record: dict[str, Any]) -> None:
        self.completed += 1
        numbers = summarize_replay(record)
        self.progress.update(self.task, advance=1, numbers=numbers)
        if not self.console.is_terminal:
            line = f"{self.completed:>4}/{self.total}  {numbers}"
            self.console.print(line, highlight=False, soft_wrap=True)


def summarize_replay(record: dict[str, Any]) -> str:
    """One line of numbers of a replayed iteration."""
    heading = f"iteration {record['iteration']}  reward {record['reward']:.3f}"
    if not record["batch_rows"]:
        return f"{heading}  no update was made"
    if record["flipped"] is None:
        return f"{heading}  {record['batch_rows']} rows, none with signal"
    cancelled = record["cancellation"]
    return (
        f"{heading}  {record['batch_rows']} rows, {record['split_groups']} groups split, "
        f"entropy {record['entropy']:.3f}, {100 * record['flipped']:.0f} % flipped"
        + (f", {100 * cancelled:.0f} % cancelled" if cancelled is not None else "")
    )


def comparison_table(lines: Sequence[dict[str, Any]]) -> Table:
    """Means over the iterations, for the replayed plans and those of QB and RB."""
    table = Table("mean over iterations", box=None, header_style="bold", pad_edge=False)
    for title in PLAN_TITLES.values():
        table.add_column(title, justify="right")
    for field, (title, number_format) in ROWS.items():
        cells = [_mean_cell(lines, plan_name, field, number_format) for plan_name in PLAN_TITLES]
        if any(cells):
            table.add_row(title, *cells)
    return table


def _mean_cell(
    lines: Sequence[dict[str, Any]], plan_name: str, field: str, number_format: str
) -> str:
    values = [line.get(plan_name, {}).get(field) for line in lines]
    measured_values = [value for value in values if value is not None]
    return number_format.format(np.mean(measured_values)) if measured_values else ""
