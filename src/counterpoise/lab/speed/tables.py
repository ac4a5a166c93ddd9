"""The table of a measurement: rows for the terminal, checks of limits, and JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from counterpoise.terminal import TerminalConsole


@dataclass(frozen=True, slots=True)
class LimitCheck:
    """A measured number with the limit that it must meet.

    Example:
        LimitCheck("sampling", 0.28, 0.30, "s").passed
    """

    name: str
    value: float
    limit: float
    unit: str = ""
    at_least: bool = False  # the limit is a minimum; else a maximum

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
    """One measurement as a table; `data` holds every repeat behind its numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    limit_checks: Sequence[LimitCheck] = ()
    notes: Sequence[str] = ()
    data: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0  # that the measurement took

    def as_json(self) -> dict[str, Any]:
        # The key "bars" is that of existing result files: keep it.
        bars = [asdict(check) | {"passed": check.passed} for check in self.limit_checks]
        table = {"title": self.title, "columns": list(self.columns), "rows": list(self.rows)}
        return table | {
            "bars": bars, "notes": list(self.notes), "seconds": self.seconds, **self.data
        }  # fmt: skip


def print_table(measurement: MeasurementTable, console: Console) -> None:
    """Print the table, then its notes and the checks of its limits."""
    table = Table(
        title=measurement.title,
        title_justify="left",
        title_style="bold",
        box=None,
        header_style="bold",
        pad_edge=False,
    )
    for index, column in enumerate(measurement.columns):
        table.add_column(column, justify="right" if index else "left", overflow="fold")
    for row in measurement.rows:
        table.add_row(*row)
    console.print()
    console.print(table)
    for note in measurement.notes:
        console.print(note, style="dim", highlight=False, markup=False)
    for check in measurement.limit_checks:
        style = "green" if check.passed else "bold red"
        console.print(str(check), style=style, highlight=False, markup=False)


def make_console() -> Console:
    """A console that is wide enough for the tables if the output is not a terminal."""
    return TerminalConsole(width=None if sys.stdout.isatty() else 170)


def format_seconds(value: float) -> str:
    return f"{value:.3f} s" if value < 10 else f"{value:.1f} s"


def format_gigabytes(count: float) -> str:
    """A memory peak in GB; "-" on a CPU, where it is not measured."""
    return f"{count / 1e9:.1f} GB" if count else "-"


def _number(value: float) -> str:
    return f"{value:.4g}"
