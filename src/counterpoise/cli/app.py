"""The `poise` application, and the options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise import __version__
from counterpoise.terminal import echo

app = typer.Typer(
    name="poise",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    rich_markup_mode="markdown",
    help="""Critic-free RL for language models (the GRPO family), with a view of every token.
**poise demo** trains the embedded model in a few minutes on two CPU cores.
**poise train** runs what a TOML file describes. **poise plan** shows which rollouts
would share an optimizer step. **poise report** turns a run folder into one HTML page.
**poise study** reproduces the figures of the paper.""",
)

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        help="Override an option: section.option=value. Repeatable; see `poise options`.",
    ),
]
OutOption = Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the run.")]


def _print_version(requested: bool) -> None:
    if requested:
        echo(f"counterpoise {__version__}")
        raise typer.Exit


@app.callback()
def poise(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass
