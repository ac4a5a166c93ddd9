"""`poise options`: list the options of a run with their defaults and explanations."""

from __future__ import annotations

from typing import Annotated

import typer

from counterpoise.errors import PoiseError


def options(
    like: Annotated[str, typer.Argument(help="Only options whose name contains this.")] = "",
) -> None:
    """List the options of a run, each with its default and what it does."""
    from rich.table import Table

    from counterpoise.config.load import options as all_options
    from counterpoise.terminal import TerminalConsole

    table = Table(
        "option", "default", "what it does", box=None, header_style="bold", pad_edge=False
    )
    for name, default, doc in all_options():
        if like in name:
            table.add_row(name, default, doc)
    if not table.row_count:
        raise PoiseError(f"no option contains '{like}'; `poise options` lists them all")
    TerminalConsole().print(table)
