"""`poise study` at the terminal: progress while it measures, verdicts when it is done."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from counterpoise.errors import PoiseError, unknown
from counterpoise.statistics.finding import Finding
from counterpoise.study import STUDIES, stored
from counterpoise.study.lab import Lab
from counterpoise.study.run import BUDGETS, load_study, measured, run_study
from counterpoise.study.study import Study

COLOURS = {"replicated": "green", "not replicated": "red", "inconclusive": "yellow"}


def list_studies() -> None:
    table = Table("study", "shows", "what the paper says", box=None, header_style="bold")
    for name in STUDIES:
        study = load_study(name)
        table.add_row(name, study.shows, study.claim)
    Console().print(table)


def run_studies(
    name: str, model: str, budget: str, out: Path, *, again: bool, rollouts: Path | None = None
) -> None:
    """One study or all of them; every fault is found before anything is measured."""
    if budget not in BUDGETS:
        raise unknown("budget", budget, BUDGETS)
    every = stored.STUDIES if rollouts else STUDIES
    studies = [load_study(each) for each in (every if name == "all" else [name])]
    if rollouts and name != "all" and name not in every:
        raise PoiseError(
            f"study {name} draws its own rollouts; --rollouts is for {', '.join(every)}"
        )
    console = Console()
    lab = Lab(model, budget, out, rollouts=rollouts)
    if rollouts:
        _ = lab.stored  # and so are rollouts that cannot be read
    if again or any(not measured(study, lab) for study in studies):
        _ = lab.policy  # a model that cannot be loaded is found before anything is written
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise PoiseError(f"{out} cannot be used: {fault.strerror}") from fault
    try:
        for study in studies:
            finding = _run(study, lab, console, again=again)
            _tell(study, finding, console)
    finally:
        lab.close()

    from counterpoise.report.page import write_report

    console.print(f"report {write_report(out)}", highlight=False, markup=False)


def _run(study: Study, lab: Lab, console: Console, *, again: bool) -> Finding:
    """With a bar on a terminal; elsewhere a line now and then."""
    last = time.monotonic()
    progress = Progress(
        TextColumn(f"[bold]{study.name}[/]"),
        BarColumn(bar_width=24),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    task = progress.add_task("loading", total=1.0)

    def show(doing: str, share: float) -> None:
        nonlocal last
        progress.update(task, completed=share, description=escape(doing))
        if not console.is_terminal and time.monotonic() - last > 20:
            last = time.monotonic()
            console.print(f"{study.name}: {doing}, {100 * share:.0f} %", markup=False)

    lab.progress = show
    with progress:
        return run_study(study, lab, lambda text: console.print(text, markup=False), again=again)


def _tell(study: Study, finding: Finding, console: Console) -> None:
    colour = COLOURS[finding.verdict]
    console.print(
        f"[bold]{study.name}[/] ({study.shows}): [{colour}]{finding.verdict}[/]. "
        + escape(finding.because),
        highlight=False,
    )
