"""`poise audit`: a post-mortem of a run, in the terminal and as one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterpoise.errors import PoiseError
from counterpoise.terminal import echo

if TYPE_CHECKING:
    from rich.console import Console

    from counterpoise.report.audit.records import AuditFinding, AuditReport

COLOURS = {"alarm": "bold red", "warning": "bold yellow", "note": "dim"}


def audit(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run, or a folder of `poise import`.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The HTML file. Default: RUN/audit.html."),
    ] = None,
    bench: Annotated[
        list[Path] | None,
        typer.Option("--bench", "-b", help="A benchmark file to look for in the prompts."),
    ] = None,
    page: Annotated[
        bool, typer.Option("--page/--no-page", help="Write the page, or only print.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; writes a page only with --out.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Also print what was checked and is clear.")
    ] = False,
) -> None:
    """Find what went wrong in a run, most serious first, with evidence, cost and remedy.

    Reads native runs, runs of TRL and verl, and imported rollouts. Nothing but the page is written.
    A check that cannot be made from the run's files says which file is missing.

    - `poise audit out/demo`
    - `poise audit out/theirs --bench math500.jsonl --out audit.html`
    - `poise audit out/demo --json`
    """
    import json

    from counterpoise.report.audit.page import write_audit_page
    from counterpoise.report.audit.rank import report_to_data

    if out is not None and not page:
        raise PoiseError("--no-page writes no page: leave out --out")
    report = _audit_with_progress(folder, bench or [])
    # Print before writing the page: if it cannot be written, the findings are not lost.
    if as_json:
        from counterpoise.report.charts.render import nan_to_none

        echo(json.dumps(nan_to_none(report_to_data(report))))
    else:
        _print_report(report, everything=everything)
    if out is not None or (page and not as_json):
        written = write_audit_page(report, out or folder / "audit.html")
        if not as_json:
            echo(f"page   {written}")


def _audit_with_progress(folder: Path, bench: list[Path]) -> AuditReport:
    """Audit with a bar on stderr, which disappears at the end and shows only in a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from counterpoise.report.audit.rank import audit_run
    from counterpoise.terminal import TerminalConsole

    console = TerminalConsole(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("files", total=None)
        return audit_run(
            folder,
            bench,
            progress=lambda what, done, total: bar.update(
                task, description=what, completed=done, total=total
            ),
        )


def _print_report(report: AuditReport, *, everything: bool) -> None:
    from rich.text import Text

    from counterpoise.errors import format_count
    from counterpoise.terminal import TerminalConsole

    console = TerminalConsole()
    counts = [
        format_count(report.count("alarm"), "alarm"),
        format_count(report.count("warning"), "warning"),
        format_count(report.count("note"), "note"),
    ]
    console.print(
        f"{report.run} ({report.source}): {format_count(report.iterations, 'iteration')}, "
        f"{format_count(report.rollouts, 'rollout')}; {', '.join(counts)}",
        highlight=False,
    )
    for note in report.notes:
        console.print(note, highlight=False)
    for finding in report.findings:
        if finding.level in COLOURS:
            _print_finding(console, finding)
    clear = [finding for finding in report.findings if finding.level == "clear"]
    if everything:
        for finding in clear:
            console.print(
                Text.assemble(("\nclear    ", "green"), finding.title, f"\n  {finding.verdict}"),
                highlight=False,
            )
            if finding.missing:
                console.print(f"  not in this run: {', '.join(finding.missing)}", highlight=False)
    elif clear:
        names = ", ".join(finding.title.lower() for finding in clear)
        console.print(f"\nclear    {names}", highlight=False)
    for finding in report.findings:
        if finding.level == "unsupported":
            console.print(
                f"unknown  {finding.title.lower()}: needs {' and '.join(finding.missing)}",
                highlight=False,
            )


def _print_finding(console: Console, finding: AuditFinding) -> None:
    from rich.text import Text

    console.print(
        Text.assemble((f"\n{finding.level:8} ", COLOURS[finding.level]), (finding.title, "bold")),
        highlight=False,
    )
    if finding.consequence_of:
        console.print(f"  consequence of {finding.consequence_of}", highlight=False)
    console.print(f"  {finding.verdict}", highlight=False)
    # Notes stay short: their evidence is on the page and in --json.
    if finding.level == "note":
        return
    for measurement in finding.measurements:
        console.print(f"    {measurement.name}: {measurement}", highlight=False)
    for example in finding.examples[:3]:
        rollout_label = (
            example.group if example.index is None else f"{example.group} #{example.index}"
        )
        console.print(f"    {rollout_label}: {example.text}", highlight=False)
    console.print(f"  threshold: {finding.threshold}", highlight=False)
    if finding.missing:
        console.print(f"  not in this run: {', '.join(finding.missing)}", highlight=False)
    console.print(f"  cost: {finding.cost}", highlight=False)
    console.print(Text.assemble("  ", ("do: ", "bold"), finding.remedy), highlight=False)
