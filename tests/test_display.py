"""The progress of a run: readable at 80 columns, a line an iteration in a log."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from counterpoise.display import LiveDisplay
from counterpoise.runfile import from_tables

RECORD: dict[str, Any] = {
    "iteration": 1, "success": 0.53, "tokens_per_second": 12_805.0, "batch_rows": 1_024,
    "positive_share": 0.38, "flipped": 0.24, "cancellation": 0.19,
}  # fmt: skip
NUMBERS = "success  53 %  12,805 tok/s  batch 1024, 38 % positive, 24 % flipped, 19 % cancelled"


def printed(terminal: bool, width: int) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=width, color_system=None)
    with LiveDisplay(console) as display:
        display.started(from_tables({}), 1_270_000, 0)
        display.iterated(RECORD)
    return file.getvalue()


def test_a_terminal_of_80_columns_shows_count_time_and_numbers() -> None:
    last = printed(terminal=True, width=80)[-400:]
    for word in ("1/40", "left", "53 %", "19 %"):
        assert word in last


def test_a_log_has_one_line_for_an_iteration_however_long() -> None:
    lines = printed(terminal=False, width=40).splitlines()
    assert lines[-1] == f"   1/40  {NUMBERS}"
    assert len(lines) == 2
