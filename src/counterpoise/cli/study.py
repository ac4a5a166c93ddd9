"""`poise study`: a figure or table of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli.app import SetOption


def study(
    name: Annotated[
        str, typer.Argument(help="Studies by name, with commas, or 'all'. Without: the list.")
    ] = "",
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
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", min=0, help="Stop after so long; the same command goes on."),
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option("--size", help="Another size than the budget's: batches=4. Repeatable."),
    ] = None,
    sets: SetOption = None,
) -> None:
    """Reproduce a figure or table of the paper: numbers, verdict, table, figure.

    Writes NAME.json, NAME.parquet, NAME.svg, NAME.png and NAME.html, and report.html for all
    studies of the folder. What was measured before is only judged and drawn again, so an
    interrupted `poise study all` goes on where it stopped. A study that fails does not take the
    others with it. --set changes the run that studies draw and train with (runs/demo.toml).

    - `poise study flipping`
    - `poise study all --budget quick --out out/studies`
    - `poise study proxy,value -m out/smollm2-warm -b full --size batches=4 --minutes 8`
    """
    if not name:
        from counterpoise.lab.studies.descriptions import list_studies

        list_studies()
        return
    from counterpoise.lab.studies.terminal import StudyLimits, run_studies

    limits = StudyLimits(sizes or (), sets or (), minutes)
    run_studies(name, model, budget, out, again=again, rollouts=rollouts, limits=limits)
