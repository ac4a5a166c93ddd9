"""`poise options`: every option with its default and its reason."""

from __future__ import annotations

from typing import Annotated

import typer

from counterpoise.errors import PoiseError


def options(
    like: Annotated[str, typer.Argument(help="Only options whose name contains this.")] = "",
) -> None:
    """List every option of a run with its default and its reason."""
    from rich.table import Table

    from counterpoise.config.load import list_options as all_options
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
