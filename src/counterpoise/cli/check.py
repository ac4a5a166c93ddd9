"""`poise check`: whether a run folder is whole, and what can still be trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterpoise.errors import format_count
from counterpoise.terminal import echo, echo_message

if TYPE_CHECKING:
    from counterpoise.store.check.findings import CheckReport

MAX_SHOWN = 20  # findings; --json has all


def check(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check a run folder: checksums, digests, and that its files agree with each other.

    Nothing is changed. The exit code is 0 if the folder is whole and 2 if it is not; then the
    output lists what can still be trusted.

    - `poise check out/demo`
    - `poise check out/demo --json`
    """
    from counterpoise.store.check.check_run import check_run

    report = check_run(run)
    echo(json.dumps(report.to_record(), indent=1) if as_json else _describe(report))
    if not report.is_whole:
        if not as_json:
            echo_message(
                f"poise: {run} is damaged in {format_count(len(report.findings), 'place')}: "
                "restore it from a backup, or use only what is listed as trusted"
            )
        raise typer.Exit(2)


def _describe(report: CheckReport) -> str:
    state = "finished" if report.finished else "unfinished"
    verdict = "whole" if report.is_whole else "damaged"
    lines = [f"{report.run}: {verdict}; {format_count(report.iterations, 'iteration')}, {state}"]
    lines += [f"  {finding.file} {finding.problem}" for finding in report.findings[:MAX_SHOWN]]
    if len(report.findings) > MAX_SHOWN:
        lines.append(f"  and {len(report.findings) - MAX_SHOWN} more; --json lists all")
    lines += [f"  note: {remark}" for remark in report.remarks]
    if not report.is_whole:
        trusted = [
            name if extent == "all" else f"{name} ({extent})"
            for name, extent in report.trusted().items()
        ]
        lines.append(f"trusted: {', '.join(trusted) or 'nothing'}")
        lines.append(report.resume_advice())
    return "\n".join(lines)
