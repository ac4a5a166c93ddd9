"""`poise track`: send a run folder to TensorBoard or Weights & Biases."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.terminal import echo


def track(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A run folder, finished or still training, or an imported one."
        ),
    ],
    to: Annotated[
        list[str], typer.Option("--to", help="tensorboard, wandb or trackio. Repeatable.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder for the tracker's files. Default: the run folder."
        ),
    ] = None,
) -> None:
    """Send a run's metrics to TensorBoard or Weights & Biases.

    To send them while the run trains, start it with `--set 'track.to=[wandb]'` instead.

    - `poise track out/demo --to tensorboard`, then `tensorboard --logdir out`
    - `poise track out/theirs --to wandb`
    """
    from counterpoise.run.trackers.feed import send_run

    echo("\n".join(send_run(run, to, out)))
