"""`poise options`: list or search the options of a run, with defaults and explanations."""

from __future__ import annotations

from typing import Annotated

import typer

from counterpoise.errors import PoiseError


def options(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD]",
            help="Show only options that match: part of a name, TRL's or verl's name for the "
            "option, or a word of its explanation.",
        ),
    ] = None,
) -> None:
    """List the options of a run, each with its default and what it does; best matches first.

    - `poise options update`: a section
    - `poise options learning_rate`: what TRL calls update.lr
    - `poise options reward`: everything about rewards
    """
    from rich.table import Table
    from rich.text import Text

    from counterpoise.config.load import list_options as all_options
    from counterpoise.config.search_options import find_remark, search_options
    from counterpoise.terminal import TerminalConsole

    query = " ".join(words or [])
    matches = search_options(query, all_options()) if query else all_options()
    if not matches:
        raise PoiseError(f"no option matches '{query}'; `poise options` lists them all")
    table = Table(
        "option", "default", "what it does", box=None, header_style="bold", pad_edge=False
    )
    for option_name, default, explanation in matches:
        table.add_row(option_name, default, explanation)
    console = TerminalConsole()
    console.print(table)
    if remark := find_remark(query):
        console.print(Text(f"\n{remark}"), highlight=False)
