"""Run studies from the terminal, with progress while measuring and verdicts at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from counterpoise.errors import PoiseError, unknown_name
from counterpoise.files import folder_lock
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.run import (
    BUDGETS,
    is_measured,
    judge_records,
    make_study_folder,
    partial_results,
    run_study,
)
from counterpoise.lab.studies.selection import (
    SKIPPED_NOTE,
    StudyLimits,
    parse_sizes,
    select_studies,
)
from counterpoise.lab.studies.study import Study, load_study
from counterpoise.statistics.finding import Finding
from counterpoise.store.folder import check_no_run
from counterpoise.terminal import TerminalConsole, one_line

VERDICT_COLOURS = {
    "replicated": "green",
    "not replicated": "red",
    "inconclusive": "yellow",
    "untestable here": "blue",
}


class OutOfTimeError(Exception):
    """Raised at a study's next progress report once the time limit is over."""


def run_studies(
    names: str,
    model: str,
    budget: str,
    out: Path,
    *,
    again: bool,
    rollouts: Path | None = None,
    limits: StudyLimits = StudyLimits(),  # noqa: B008  frozen
) -> None:
    """Run the named studies, or all of them.

    All options are checked before anything is measured. A study that fails or runs out of time does
    not stop the others.
    """
    deadline = None if limits.minutes is None else time.monotonic() + 60 * limits.minutes
    if budget not in BUDGETS:
        raise unknown_name("budget", budget, BUDGETS)
    check_no_run(out, "studies")
    console = TerminalConsole()
    studies = [
        load_study(study_name) for study_name in select_studies(names, model, rollouts is not None)
    ]
    if names == "all" and model != "embedded" and not rollouts:
        console.print(SKIPPED_NOTE, markup=False, highlight=False)
    size_overrides = parse_sizes(limits.sizes, [study.budgets[budget] for study in studies])
    lab = Lab(
        model,
        budget,
        out,
        rollouts=rollouts,
        options=limits.overrides,
        size_overrides=size_overrides,
    )
    if rollouts:
        _ = lab.stored_groups  # unreadable rollouts raise an error before anything is measured
    if again or any(not is_measured(study, lab) for study in studies):
        _ = lab.policy  # a model that cannot be loaded raises an error before anything is written
    make_study_folder(out)
    try:
        # Two commands would replace each other's tables of token values and of partial results.
        with folder_lock(out):
            _run_all(studies, lab, console, deadline, again=again)
    finally:
        lab.close()


def _run_all(
    studies: Sequence[Study], lab: Lab, console: Console, deadline: float | None, *, again: bool
) -> None:
    # Studies that are measured already cost nothing: they are judged even after the time limit.
    unfinished: list[Study] = []
    failed_names: list[str] = []
    for study in studies:
        try:
            is_late = deadline is not None and time.monotonic() > deadline
            if is_late and (again or not is_measured(study, lab)):
                raise OutOfTimeError
            finding = _run_with_progress(study, lab, console, deadline, again=again)
        except OutOfTimeError:
            unfinished.append(study)
        except Exception as fault:  # one study must not cost the others their results
            if len(studies) == 1:
                raise
            failed_names.append(study.name)
            if isinstance(fault, PoiseError):
                console.print(
                    one_line(f"{study.name} failed: {fault}"), markup=False, highlight=False
                )
            else:
                console.print_exception()
        else:
            _print_verdict(study, finding, console)
        lab.release_memory()
    # With --again the same command would remove the parts that were measured.
    continue_without_again = [
        study for study in unfinished if again and partial_results(study, lab).is_begun
    ]
    repeat_command = [study for study in unfinished if study not in continue_without_again]
    for late_studies, remedy in (
        (repeat_command, "the same command again"),
        (continue_without_again, "it without --again"),
    ):
        if late_studies:
            names = ", ".join(study.name for study in late_studies)
            console.print(
                f"not finished in time: {names}; run {remedy} to continue", highlight=False
            )
    if len(failed_names) + len(unfinished) < len(studies):
        _write_report(lab.out, console)
    if failed_names:
        others = "" if unfinished else "; the other studies are done"
        raise PoiseError(f"{', '.join(failed_names)} failed, for the reasons above{others}")


def judge_stored_records(name: str, records: Path, out: Path) -> None:
    """`poise study NAME --records FILE`: the verdict and the pages from stored records."""
    console = TerminalConsole()
    (study_name, *further_names) = select_studies(name, "embedded", stored_rollouts=False)
    if further_names:
        raise PoiseError("--records holds the records of one study: name that one")
    study = load_study(study_name)
    check_no_run(out, "studies")
    finding = judge_records(study, records, out, lambda text: console.print(text, markup=False))
    _print_verdict(study, finding, console)
    _write_report(out, console)


def _write_report(out: Path, console: Console) -> None:
    try:
        from counterpoise.lab.choose_page import write_report

        message = f"report {write_report(out)}"
    except ModuleNotFoundError as fault:
        message = f"no report: {fault.name} is not installed; run `poise report {out}` where it is"
    console.print(message, highlight=False, markup=False, soft_wrap=True)


def _run_with_progress(
    study: Study, lab: Lab, console: Console, deadline: float | None, *, again: bool
) -> Finding:
    """Run a study with a progress bar; outside a terminal, print a line from time to time."""
    last_line_time = time.monotonic()
    progress = Progress(
        TextColumn(f"[bold]{study.name}[/]"),
        BarColumn(bar_width=24),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    progress_task = progress.add_task("loading", total=1.0)

    def show(doing: str, share: float) -> None:
        nonlocal last_line_time
        progress.update(progress_task, completed=share, description=one_line(doing))
        if not console.is_terminal and time.monotonic() - last_line_time > 20:
            last_line_time = time.monotonic()
            console.print(f"{study.name}: {doing}, {100 * share:.0f} %", markup=False)
        if deadline is not None and time.monotonic() > deadline and share < 1:
            raise OutOfTimeError

    lab.progress = show
    with progress:
        return run_study(study, lab, lambda text: console.print(text, markup=False), again=again)


def _print_verdict(study: Study, finding: Finding, console: Console) -> None:
    colour = VERDICT_COLOURS[finding.verdict]
    verdict_line = Text.assemble(
        (study.name, "bold"),
        f" ({study.shows}): ",
        (finding.verdict, colour),
        f". {finding.because}",
    )
    console.print(verdict_line, highlight=False)
    for claim in finding.claims:
        verdict_line = Text.assemble(
            f"  {claim.claim}: ", (claim.verdict, VERDICT_COLOURS[claim.verdict])
        )
        console.print(verdict_line, highlight=False)
