"""`poise import`: convert rollouts that other trainers have logged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.terminal import echo


def import_rollouts(
    path: Annotated[Path, typer.Argument(help="The folder or file that the other trainer wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder for the rollouts.")],
    source: Annotated[
        str | None,
        typer.Option("--from", help="trl, verl or prime-rl. Default: recognized from the files."),
    ] = None,
    tokenizer: Annotated[
        str,
        typer.Option("--tokenizer", help="Tokenizer of the trained model: a folder or a hub id."),
    ] = "",
    reward: Annotated[
        str,
        typer.Option(
            "--reward",
            help="TRL only: the reward columns and their weights, such as correct,form=0.2.",
        ),
    ] = "",
) -> None:
    """Convert rollouts logged by TRL, verl or prime-rl, for `poise plan` and `poise report`.

    TRL and verl log only texts, so --tokenizer is needed to count tokens. prime-rl logs only
    tokens; there --tokenizer adds the texts.

    - `poise import trl_output --out out/theirs --tokenizer Qwen/Qwen3-0.6B`
    - `poise plan out/theirs/rollouts/step_00010.jsonl --composer shuffled`
    - `poise report out/theirs`
    """
    from counterpoise.hosts.importing.write_folder import import_run

    echo(import_run(path, out, source, tokenizer, reward).terminal_text(out))
