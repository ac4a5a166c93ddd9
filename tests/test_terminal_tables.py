"""Foreign text on the console: no markup, no control codes, and columns that still line up."""

from __future__ import annotations

import io

from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

from counterpoise.terminal import TerminalConsole

HOSTILE = "[red]a\x1b]0;x\x07\x9b2J\r\x08\u202eb[/red]"
SHOWN = r"[red]a\x1b]0;x\x07\x9b2J\r\x08\u202eb[/red]"


def drawn(*renderables: object, terminal: bool = False) -> str:
    file = io.StringIO()
    colours = "truecolor" if terminal else None
    console = TerminalConsole(file=file, width=120, force_terminal=terminal, color_system=colours)
    for renderable in renderables:
        console.print(renderable, highlight=False)
    return file.getvalue()


def test_strings_are_neither_markup_nor_control_codes() -> None:
    assert drawn(HOSTILE) == SHOWN + "\n"
    assert drawn("two\nlines\tstay") == "two\nlines   stay\n"


def test_texts_are_spelled_out_and_keep_their_style() -> None:
    # rich drops a carriage return and a backspace from a Text by itself
    assert drawn(Text("a\x1b[2Jb\u202e")) == "a\\x1b[2Jb\\u202e\n"
    assert drawn(Text("a\x1bb", style="bold"), terminal=True) == "\x1b[1ma\\x1bb\x1b[0m\n"


def test_a_table_of_foreign_names_lines_up() -> None:
    table = Table("name", "rows", box=None, pad_edge=False)
    table.add_row(HOSTILE, "7")
    table.add_row("plain", "8")
    first, second = drawn(table).splitlines()[1:]
    assert first == f"{SHOWN}  7   "
    assert second == f"{'plain':<{len(SHOWN)}}  8   "


def test_progress_bars_show_names_as_they_are() -> None:
    file = io.StringIO()
    console = TerminalConsole(file=file, width=120, force_terminal=True, color_system=None)
    column = TextColumn("{task.description}", markup=False)
    with Progress(column, console=console, auto_refresh=False) as bar:
        bar.add_task("loading [red]\x1b]0;x\x07", total=1)
        bar.refresh()
    assert "loading [red]\\x1b" in file.getvalue()
    assert "\x1b]0;" not in file.getvalue()
