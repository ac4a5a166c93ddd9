"""`poise report`: a run folder as one HTML page, or several runs on one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.terminal import echo


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER",
            help="A run, an imported run, an evaluation, or a folder of studies; or two to six "
            "runs, which are compared.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The HTML file; default FOLDER/report.html, and comparison.html in the folder of "
            "the first run for several.",
        ),
    ] = None,
) -> None:
    """Turn a run, an evaluation or studies into one self-contained HTML page that opens offline.

    Several runs become one page: final numbers side by side, the options that differ, and the
    curves of one laid over those of the others. Runs are not averaged: that is `poise experiment`.

    - `poise report out/demo`
    - `poise report out/studies --out studies.html`
    - `poise report out/qb out/shuffled`
    """
    if len(folders) > 1:
        from counterpoise.report.compare.page import write_comparison_page

        echo(write_comparison_page(folders, out))
    else:
        from counterpoise.lab.choose_page import write_report

        echo(write_report(folders[0], out))
