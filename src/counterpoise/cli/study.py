"""`poise study`: reproduce a figure or table of the paper."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli.app import SetOption
from counterpoise.cli.flags import takes_flags
from counterpoise.errors import PoiseError


@dataclass(frozen=True)
class StudyFlags:
    name: Annotated[
        str, typer.Argument(help="Comma-separated names, or 'all'. Default: list the studies.")
    ] = ""
    model: Annotated[
        str, typer.Option("--model", "-m", help="'embedded', 'smollm2', a folder, or a hub id.")
    ] = "embedded"
    budget: Annotated[
        str, typer.Option("--budget", "-b", help="'quick' (for a CPU) or 'full' (for a GPU).")
    ] = "quick"
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")] = Path(
        "out/studies"
    )
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Repeat measurements; token values and training runs in the folder stay.",
        ),
    ] = False
    rollouts: Annotated[
        Path | None,
        typer.Option(
            "--rollouts", help="Use stored rollouts of a run or an import instead of sampling."
        ),
    ] = None
    records: Annotated[
        Path | None,
        typer.Option(
            "--records", help="Evaluate and plot the records in this table again; measure nothing."
        ),
    ] = None
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", min=0, help="Stop after this long; run it again to continue."),
    ] = None
    sizes: Annotated[
        list[str] | None,
        typer.Option("--size", help="Override a size of the budget: batches=4. Repeatable."),
    ] = None
    sets: SetOption = None


@takes_flags
def study(flags: StudyFlags) -> None:
    """Reproduce a figure or table of the paper, with a verdict on its claim.

    Writes NAME.json, NAME.parquet, NAME.svg, NAME.png and NAME.html, and report.html for all
    studies in the folder. Existing measurements are kept and only evaluated and plotted again, so
    an interrupted `poise study all` continues where it stopped. If a study fails, the others still
    run. --set changes the options with which studies sample and train (those of the preset `demo`).

    --records FILE judges a NAME.parquet that was measured elsewhere, such as those in docs/data/.

    `poise study replication` measures nothing: in a checkout of the repository it judges the stored
    records again and writes docs/data/claims.csv and the tables and plot of
    docs/results/replication.md.

    `poise study audit` trains runs with one planted fault each and writes how often `poise audit`
    names it (docs/results/audit.md in a checkout): ten minutes a seed on one core.

    - `poise study flipping`
    - `poise study flipping --records docs/data/embedded-flipping.parquet`
    - `poise study all --budget quick --out out/studies`
    - `poise study proxy,value -m out/smollm2-warm -b full --size batches=4 --minutes 8`
    """
    if not flags.name:
        from counterpoise.lab.studies.descriptions import list_studies

        list_studies()
        return
    if flags.name == "replication":
        refuse_ignored_flags(flags, used=())
        from counterpoise.lab.replication import write_replication
        from counterpoise.terminal import TerminalConsole

        for path in write_replication(Path()):
            TerminalConsole().print(f"wrote {path}", markup=False, highlight=False)
        return
    if flags.name == "audit":
        used_flags = ("records", "out") if flags.records else ("budget", "sizes", "out")
        refuse_ignored_flags(flags, used_flags)
        from counterpoise.lab.sick_runs.confusion import run_audit_study, write_page_of_records
        from counterpoise.terminal import TerminalConsole

        console = TerminalConsole()
        page = (
            write_page_of_records(flags.records, flags.out)
            if flags.records
            else run_audit_study(
                flags.budget,
                flags.sizes or (),
                flags.out,
                lambda line: console.print(line, highlight=False),
            )
        )
        console.print(f"wrote {page}", markup=False, highlight=False)
        return
    if flags.records:
        refuse_ignored_flags(flags, used=("records", "out"))
        from counterpoise.lab.studies.terminal import judge_stored_records

        judge_stored_records(flags.name, flags.records, flags.out)
        return
    from counterpoise.lab.studies.terminal import StudyLimits, run_studies

    limits = StudyLimits(flags.sizes or (), flags.sets or (), flags.minutes)
    run_studies(
        flags.name,
        flags.model,
        flags.budget,
        flags.out,
        again=flags.again,
        rollouts=flags.rollouts,
        limits=limits,
    )


def refuse_ignored_flags(flags: StudyFlags, used: Sequence[str]) -> None:
    """Refuse flags that the study of this name does not read, instead of ignoring them."""
    option_names = {"sizes": "--size", "sets": "--set"}
    for field in dataclasses.fields(flags):
        is_given = getattr(flags, field.name) != field.default
        if is_given and field.name not in ("name", *used):
            option_name = option_names.get(field.name, f"--{field.name}")
            with_records = " --records" if "records" in used else ""
            raise PoiseError(
                f"poise study {flags.name}{with_records} does not use {option_name}: leave it out"
            )
