"""`poise report`: a run folder as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[
        Path, typer.Argument(help="A run, an imported run, an evaluation, or a folder of studies.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The HTML file; default RUN/report.html.")
    ] = None,
) -> None:
    """Turn a run, an evaluation or studies into one self-contained HTML page that opens offline.

    - `poise report out/demo`
    - `poise report out/studies --out studies.html`
    """
    from counterpoise.report.page import write_report

    typer.echo(write_report(run, out))
