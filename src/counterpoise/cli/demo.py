"""`poise demo`: train the embedded model in a few minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli.app import SetOption


def demo(
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the run. Default: out/demo, or demo-2, ..."),
    ] = None,
    sets: SetOption = None,
) -> None:
    """Train the embedded model with QB and RB for 40 iterations, and report what changed.

    Needs no network and no GPU. This is `poise train demo`; every option can be overridden:

        poise demo --set batch.composer=shuffled --set balance.tau=0
    """
    from counterpoise.cli.train_at_terminal import find_unused_folder, train_natively
    from counterpoise.config.load import load_config

    train_natively(
        load_config("demo", sets or []), out or find_unused_folder(Path("out/demo")), resume=False
    )
