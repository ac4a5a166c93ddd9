"""`poise experiment`: arms and seeds, compared by a rule."""

from __future__ import annotations

from typing import Annotated

import typer

from counterpoise.cli.app import OutOption


def experiment(
    file: Annotated[str, typer.Argument(help="A run file with [experiment], or a preset's name.")],
    out: OutOption = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Runs at a time; default: one a core.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes", min=0, help="Stop after so long; the same command goes on. 0: only judge."
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Only these, by place: 0:4 is the first four.")
    ] = None,
    rates: Annotated[
        str | None, typer.Option("--rates", help="Only these learning rates: 1e-5,4e-5.")
    ] = None,
    arms: Annotated[
        str | None, typer.Option("--arms", help="Only these arms: shuffled,QB.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Where the model lies on this machine.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the plan, what of it is done in --out, what is left and how long it takes, "
            "and what the seeds can show.",
        ),
    ] = False,
) -> None:
    """Train the arms of an experiment, seed by seed, and compare them.

    What decides is the file's margin, level and hypotheses; --dry-run and every result say the rule
    that they make in words. The words of `rule` are the author's, shown beside it and not executed.

    Every run is a process of its own and is taken up where it stopped. DIR/curves.parquet holds all
    finished runs; put that of another folder into DIR/pieces/ to add its runs. DIR/results.md has
    the verdicts, the tables, and the runs that failed.

    - `poise experiment smollm2-interventions --dry-run`
    - `poise experiment smollm2-interventions --out out/arms --jobs 6 --minutes 9`
    """
    from counterpoise.lab.experiments.terminal import RunSelection, run_experiment

    part = RunSelection(seeds, rates, arms)
    run_experiment(file, out, part, jobs=jobs, minutes=minutes, model=model, dry_run=dry_run)
