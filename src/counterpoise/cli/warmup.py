"""`poise warmup`: supervised training, so that RL has something to improve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli.app import SetOption


def warmup(
    config: Annotated[str, typer.Argument(help="A TOML file, or a preset of runs/ by name.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the model.")],
    sets: SetOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a warm-up that was stopped.")
    ] = False,
) -> None:
    """Supervised training on worked solutions, so that RL has something to improve.

    Takes [model], [task] and [warmup]; model.name=scratch starts from nothing. The embedded model
    was made by:  poise warmup embedded --out DIR

    While it goes on, DIR.unfinished holds its checkpoints; the same command with --resume goes on
    from the last one, to the same model.
    """
    from counterpoise.config.load import load_config
    from counterpoise.lab.warmup.run import run_warmup

    run_warmup(load_config(config, sets or []), out, resume=resume)
