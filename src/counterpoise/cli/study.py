"""`poise study`: a figure or table of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def study(
    name: Annotated[str, typer.Argument(help="A study by name, or 'all'. Without: the list.")] = "",
    model: Annotated[
        str, typer.Option("--model", "-m", help="'embedded', 'smollm2', a folder, or a hub id.")
    ] = "embedded",
    budget: Annotated[
        str, typer.Option("--budget", "-b", help="'quick' (CPU) or 'full' (a GPU).")
    ] = "quick",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")] = Path(
        "out/studies"
    ),
    again: Annotated[
        bool, typer.Option("--again", help="Measure again what was measured before.")
    ] = False,
    rollouts: Annotated[
        Path | None,
        typer.Option("--rollouts", help="A run's, or imported ones, in place of drawing some."),
    ] = None,
) -> None:
    """Reproduce a figure or table of the paper: numbers, verdict, table, figure.

    Writes NAME.json, NAME.parquet, NAME.svg, NAME.png and NAME.html, and report.html for all
    studies of the folder. What was measured before is only judged and drawn again, so an
    interrupted `poise study all` goes on where it stopped.

    - `poise study flipping`
    - `poise study all --budget quick --out out/studies`
    """
    from counterpoise.study.command import list_studies, run_studies

    if name:
        run_studies(name, model, budget, out, again=again, rollouts=rollouts)
    else:
        list_studies()
