"""`poise credit`: show how token weights distribute credit over a run's rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.terminal import echo, one_line
from counterpoise.variants import TOKEN_WEIGHTS

Names = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help=f"Token weights, comma-separated: {', '.join(TOKEN_WEIGHTS)}. Each may have settings: "
        "NAME:setting=value (docs/reference/credit-methods.md).",
    ),
]


def credit(
    names: Names,
    run: Annotated[Path, typer.Argument(help="A run folder, or an imported one.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--settings", help="A setting of the weights, such as share=0.3. Repeatable."),
    ] = None,
    iteration: Annotated[
        int | None,
        typer.Option(
            "--iteration", "-i", help="Default: the last one whose model weights are stored."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="Model that scores the rollouts. Default: the run's own."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The HTML file. Default: RUN/credit.html.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with the weight of every token.")
    ] = False,
) -> None:
    """Show how token weights distribute credit: a summary here, every token on an HTML page.

    - `poise credit cancellation out/demo`
    - `poise credit high_entropy out/demo --settings share=0.3 --iteration 31`
    - `poise credit grail,shear:width=16:stride=4,rlsd out/demo --out weights.html`

    Without --out the weights are also stored in RUN/credit, where poise serve shows them.
    """
    import json

    from rich.text import Text

    from counterpoise.terminal import TerminalConsole

    # Progress goes to stderr, so that the JSON on stdout can be piped.
    error_console = TerminalConsole(stderr=True)
    with error_console.status("loading") as status:
        from counterpoise.lab.credit_view.result import compare_weightings

        def show_progress(activity: str) -> None:
            status.update(Text(one_line(activity)))

        comparison = compare_weightings(
            names, run, tuple(settings or ()), iteration, model, show_progress
        )
    # Print the numbers before writing the page: if the page cannot be written, they are not lost.
    console = TerminalConsole(quiet=as_json)
    if as_json:
        echo(json.dumps(comparison.to_json()))
    else:
        from counterpoise.lab.credit_view.table import credit_table

        console.print(credit_table(comparison), highlight=False)
    if out or not as_json:
        with error_console.status("writing the page"):
            from counterpoise.lab.credit_view.page import write_credit_page

            page = write_credit_page(comparison, out)
            if out is None:
                comparison.store()
        console.print(f"\npage {page}", highlight=False, markup=False, soft_wrap=True)
