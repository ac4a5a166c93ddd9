"""`poise warmup`: supervised training on worked solutions, before RL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli.app import SetOption


def warmup(
    config: Annotated[str, typer.Argument(help="A TOML file, or the name of a preset.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the model.")],
    sets: SetOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a warm-up that was stopped.")
    ] = False,
) -> None:
    """Train a model on worked solutions (supervised), so that RL has something to improve.

    Uses the sections [model], [task] and [warmup] of the file; model.name=scratch starts from
    random weights. The embedded model was made by:  poise warmup embedded --out DIR

    While it runs, DIR.unfinished holds its checkpoints. The same command with --resume continues
    from the last one and ends with the same model.
    """
    from counterpoise.config.load import load_config
    from counterpoise.lab.warmup.run import run_warmup

    run_warmup(load_config(config, sets or []), out, resume=resume)
