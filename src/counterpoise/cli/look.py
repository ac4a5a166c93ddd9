"""`poise look`: show the tokens of one rollout in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.errors import explain_damage


def look(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    iteration: Annotated[
        int | None,
        typer.Option("--iteration", "-i", "--step", help="Default: the last stored iteration."),
    ] = None,
    row: Annotated[
        int | None,
        typer.Option(
            "--row", help="Index of the rollout in the batch, from 0. Default: the first."
        ),
    ] = None,
    quantity_name: Annotated[
        str | None,
        typer.Option(
            "--by",
            help="The quantity to colour by: displacement (default), push, own, others, entropy, "
            "logprob, ...",
        ),
    ] = None,
    token: Annotated[
        int | None,
        typer.Option(
            "--token",
            help="Position of a token, from 0: also list the tokens that pushed it.",
        ),
    ] = None,
) -> None:
    """Show one rollout in the terminal, every token coloured by what the update did to it.

    - `poise look out/demo`
    - `poise look out/demo --iteration 12 --row 3 --by entropy`
    - `poise look out/demo --row 0 --token 13`: the tokens that pushed token 13
    """
    from counterpoise.cli.token_view import read_token_view
    from counterpoise.cli.token_view_text import print_token_view
    from counterpoise.terminal import TerminalConsole

    with explain_damage(run):
        print_token_view(
            read_token_view(run, iteration, row, quantity_name, token), TerminalConsole()
        )
