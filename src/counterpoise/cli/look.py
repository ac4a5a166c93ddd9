"""`poise look`: one rollout's tokens in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def look(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    step: Annotated[
        int | None, typer.Option("--step", help="Iteration; default the last that was stored.")
    ] = None,
    row: Annotated[
        int | None, typer.Option("--row", help="Rollout of the batch; default the first.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", help="Colour: displacement, push, own, others, entropy, ..."),
    ] = None,
    token: Annotated[
        int | None, typer.Option("--token", help="Show the tokens that pushed this one.")
    ] = None,
) -> None:
    """Show one rollout in the terminal, every token coloured by what the update did to it.

    - `poise look out/demo`
    - `poise look out/demo --step 12 --row 3 --by entropy`
    - `poise look out/demo --row 3 --token 17`
    """
    from rich.console import Console

    from counterpoise.look import look as look_at

    look_at(run, Console(), step=step, row=row, by=by, token=token)
