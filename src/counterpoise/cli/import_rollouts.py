"""`poise import`: rollouts that other trainers wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.terminal import echo


def import_rollouts(
    path: Annotated[Path, typer.Argument(help="What the other trainer wrote: a folder or a file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder for the rollouts.")],
    source: Annotated[
        str | None, typer.Option("--from", help="trl, verl or prime-rl; seen by default.")
    ] = None,
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", help="Of the model that was trained: a folder or hub id.")
    ] = "",
    reward: Annotated[
        str, typer.Option("--reward", help="TRL: the reward's columns, as correct,form=0.2.")
    ] = "",
) -> None:
    """Bring in rollouts that TRL, verl or prime-rl wrote, for `poise plan` and `poise report`.

    TRL and verl write texts only, so --tokenizer is needed to count tokens; for prime-rl it adds
    the texts.

    - `poise import trl_output --out out/theirs --tokenizer Qwen/Qwen3-0.6B`
    - `poise plan out/theirs/rollouts/step_00010.jsonl --composer shuffled`
    - `poise report out/theirs`
    """
    from counterpoise.hosts.importing.write_folder import import_run

    echo(import_run(path, out, source, tokenizer, reward).terminal_text(out))
