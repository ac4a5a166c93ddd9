"""`poise report`: write a run, or a comparison of several runs, as one HTML page."""

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
            "runs to compare.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The HTML file. Default: FOLDER/report.html; for several runs, comparison.html in "
            "the folder of the first.",
        ),
    ] = None,
) -> None:
    """Turn a run, an evaluation or studies into one self-contained HTML page that opens offline.

    Several runs become one page with their final numbers side by side, the options that differ,
    and their curves in common charts. To average runs over seeds, use `poise experiment`.

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
