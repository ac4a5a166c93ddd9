"""`poise credit`: what a weighting of tokens makes of a run's rollouts."""

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
        help=f"Token weights: {', '.join(TOKEN_WEIGHTS)}. Several by commas, each with settings of "
        "its own as NAME:setting=value; docs/reference/credit-methods.md says what they are.",
    ),
]


def credit(
    names: Names,
    run: Annotated[Path, typer.Argument(help="A run folder, or an imported one.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--settings", help="Of the weights, as share=0.3. Repeatable."),
    ] = None,
    iteration: Annotated[
        int | None,
        typer.Option(
            "--iteration", "-i", help="Default: the last whose weights the run still has."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="Who reads the rollouts, in place of the run's own weights."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The HTML file; default RUN/credit.html.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Machine-readable, with the weight of every token.")
    ] = False,
) -> None:
    """Show what token weights make of a run's rollouts: numbers here, every token on a page.

    - `poise credit cancellation out/demo`
    - `poise credit high_entropy out/demo --settings share=0.3 --iteration 31`
    - `poise credit grail,shear:width=16:stride=4,rlsd out/demo --out weights.html`
    """
    import json

    from rich.text import Text

    from counterpoise.terminal import TerminalConsole

    errors = TerminalConsole(stderr=True)
    with errors.status("loading") as status:
        from counterpoise.lab.credit_view.result import compare_weightings

        def tell(doing: str) -> None:
            status.update(Text(one_line(doing)))

        found = compare_weightings(names, run, tuple(settings or ()), iteration, model, tell)
    # The numbers before the page: a page that cannot be written costs none of them.
    console = TerminalConsole(quiet=as_json)
    if as_json:
        echo(json.dumps(found.to_json()))
    else:
        from counterpoise.lab.credit_view.table import credit_table

        console.print(credit_table(found), highlight=False)
    if out or not as_json:
        with errors.status("writing the page"):
            from counterpoise.lab.credit_view.page import write_credit_page

            page = write_credit_page(found, out)
        console.print(f"\npage {page}", highlight=False, markup=False, soft_wrap=True)
