"""`poise track`: a run folder in TensorBoard or Weights & Biases."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.terminal import echo


def track(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run that has ended or goes on, or an import.")
    ],
    to: Annotated[list[str], typer.Option("--to", help="tensorboard or wandb. Repeatable.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="For the tracker's files, in place of the run's folder."),
    ] = None,
) -> None:
    """Send the numbers of a run to TensorBoard or Weights & Biases.

    A run that is to be there while it is trained says so itself: `--set 'track.to=[wandb]'`.

    - `poise track out/demo --to tensorboard`, then `tensorboard --logdir out`
    - `poise track out/theirs --to wandb`
    """
    from counterpoise.run.trackers.feed import send_run

    echo("\n".join(send_run(run, to, out)))
