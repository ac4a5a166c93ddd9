"""`poise experiment`: train several arms over several seeds, and compare them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli.flags import takes_flags


@dataclass(frozen=True)
class ExperimentFlags:
    file: Annotated[
        str, typer.Argument(help="A TOML file with [experiment], or the name of a preset.")
    ]
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the runs and their comparison."),
    ] = None
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            help="Runs at a time; on a GPU each gets an equal share of its memory. Default: one "
            "per core.",
        ),
    ] = None
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            min=0,
            help="Stop after this long; run it again to continue. 0: only compare finished runs.",
        ),
    ] = None
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Only these seeds, by index: 0:4, the first four.")
    ] = None
    rates: Annotated[
        str | None, typer.Option("--rates", help="Only these learning rates: 1e-5,4e-5.")
    ] = None
    arms: Annotated[str | None, typer.Option("--arms", help="Only these arms: shuffled,QB.")] = None
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Folder or GGUF file of the model on this machine."),
    ] = None
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", help="File of the problems on this machine (task.path)."),
    ] = None
    engine: Annotated[
        str | None,
        typer.Option("--engine", help="With --print: native, trl or verl."),
    ] = None
    show: Annotated[
        bool,
        typer.Option(
            "--print",
            help="Print a poise train command for each run, and poise eval on the file's "
            "benchmarks.",
        ),
    ] = False
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the planned runs, which of them --out already has, how long the rest will "
            "take, and the smallest difference that the seeds can show.",
        ),
    ] = False


@takes_flags
def experiment(flags: ExperimentFlags) -> None:
    """Train the arms of an experiment, seed by seed, and compare them.

    The file's margin, level and hypotheses determine the verdicts; --dry-run and every result
    spell out the decision rule. The text of `rule` is the author's note: it is shown, not executed.

    Every run is a separate process and resumes where it stopped. DIR/curves.parquet holds all
    finished runs; to add runs from another folder, put its curves.parquet into DIR/pieces/.
    DIR/results.md has the verdicts, the tables, and the runs that failed.

    Runs use the native engine, or TRL for arms that the file lists in `engines`. --print with
    --engine prints commands for another engine, verl too.

    - `poise experiment smollm2-interventions --dry-run`
    - `poise experiment smollm2-interventions --out out/arms --jobs 6 --minutes 9`
    - `poise experiment table2 --engine verl --print --out out/table2 > table2.sh`
    """
    from counterpoise.errors import PoiseError
    from counterpoise.lab.experiments.experiment_file import read_experiment
    from counterpoise.lab.experiments.shell_commands import format_commands
    from counterpoise.lab.experiments.terminal import RunSelection, run_experiment
    from counterpoise.terminal import echo

    selection = RunSelection(flags.seeds, flags.rates, flags.arms)
    plan = read_experiment(flags.file, flags.model, flags.data)
    if flags.show:
        if flags.out is None:
            raise PoiseError("--out is missing: the folder that the commands write to")
        keys = selection.select(plan)
        echo(format_commands(flags.file, plan, keys, flags.out, flags.engine))
        return
    if flags.engine is not None:
        raise PoiseError(
            "--engine needs --print here: runs take their engines from experiment.engines of the "
            "file"
        )
    run_experiment(
        flags.file,
        plan,
        flags.out,
        selection,
        jobs=flags.jobs,
        minutes=flags.minutes,
        dry_run=flags.dry_run,
    )
