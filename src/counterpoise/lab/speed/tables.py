"""What a part found: rows for the terminal, bars with a verdict, and everything as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from counterpoise.terminal import TerminalConsole


@dataclass(frozen=True, slots=True)
class Bar:
    """A number with the limit it is held to.

    Example:
        Bar("sampling", 0.28, 0.30, "s").passed
    """

    name: str
    value: float
    limit: float
    unit: str = ""
    at_least: bool = False  # else at most

    @property
    def passed(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        side = "at least" if self.at_least else "at most"
        verdict = "pass" if self.passed else "MISS"
        return f"{verdict}  {self.name}: {_number(self.value)}{self._unit}, {side} " + (
            f"{_number(self.limit)}{self._unit}"
        )

    @property
    def _unit(self) -> str:
        return self.unit if self.unit in ("", "x") else f" {self.unit}"


@dataclass(frozen=True, slots=True)
class MeasurementTable:
    """One table. `data` holds every repeat behind its numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    bars: Sequence[Bar] = ()
    notes: Sequence[str] = ()
    data: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0  # it took

    def as_json(self) -> dict[str, Any]:
        bars = [asdict(bar) | {"passed": bar.passed} for bar in self.bars]
        table = {"title": self.title, "columns": list(self.columns), "rows": list(self.rows)}
        return table | {
            "bars": bars, "notes": list(self.notes), "seconds": self.seconds, **self.data
        }  # fmt: skip


def print_table(part: MeasurementTable, console: Console) -> None:
    """The table, its notes, and its bars last."""
    table = Table(
        title=part.title, title_justify="left", title_style="bold", box=None, header_style="bold",
        pad_edge=False,
    )  # fmt: skip
    for i, column in enumerate(part.columns):
        table.add_column(column, justify="right" if i else "left", overflow="fold")
    for row in part.rows:
        table.add_row(*row)
    console.print()
    console.print(table)
    for note in part.notes:
        console.print(note, style="dim", highlight=False, markup=False)
    for bar in part.bars:
        style = "green" if bar.passed else "bold red"
        console.print(str(bar), style=style, highlight=False, markup=False)


def make_console() -> Console:
    """Wide enough for the tables where no terminal says how wide it is."""
    return TerminalConsole(width=None if sys.stdout.isatty() else 170)


def format_seconds(value: float) -> str:
    return f"{value:.3f} s" if value < 10 else f"{value:.1f} s"


def format_gigabytes(count: float) -> str:
    """Of a peak that was watched; the CPU has none."""
    return f"{count / 1e9:.1f} GB" if count else "-"


def _number(value: float) -> str:
    return f"{value:.4g}"
