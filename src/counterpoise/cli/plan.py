"""`poise plan`: show which rollouts would share an optimizer step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.errors import PoiseError
from counterpoise.terminal import echo


def plan(
    rollouts: Annotated[
        Path,
        typer.Argument(
            help="A JSON Lines file with prompt_id, reward, and response_tokens or num_tokens."
        ),
    ],
    composer: Annotated[
        str,
        typer.Option(
            "--composer",
            "-c",
            help="What decides which rows share a step; see batch.composer.",
        ),
    ] = "grouped",
    steps: Annotated[int, typer.Option("--steps", "-k", help="Number of optimizer steps.")] = 4,
    credit: Annotated[
        str, typer.Option("--credit", help="How rewards become advantages; see credit.name.")
    ] = "grpo",
    seed: Annotated[int, typer.Option("--seed", help="Seed of the composer.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show which rollouts would share an optimizer step, without training.

    - `poise plan out/demo/rollouts/step_00001.jsonl --composer shuffled --steps 4`
    """
    import json

    from counterpoise.batch.plan_file import plan_file

    try:
        planned = plan_file(rollouts, composer, steps, seed, credit)
    except PoiseError as fault:
        suggest_import(rollouts, fault)
        raise
    if as_json:
        echo(json.dumps(planned))
        return

    # rich takes a noticeable time to import, and JSON does not need it.
    from counterpoise.cli.plan_table import plan_table
    from counterpoise.terminal import TerminalConsole

    TerminalConsole().print(plan_table(planned))


def suggest_import(path: Path, fault: PoiseError) -> None:
    """Raise an error with the `poise import` to type if `path` is a log of another trainer.

    Only called for a file that could not be planned: file names alone do not tell a log of verl
    (7.jsonl) from a file of rollouts.
    """
    import shlex

    from counterpoise.hosts.importing.formats import recognise_source

    try:
        source, _ = recognise_source(path)
    except PoiseError:
        return
    if not source.is_foreign:
        return
    command = ["poise", "import", str(path), "--out", "out/imported"]
    if not source.has_tokens or source.is_fallback:
        command += ["--tokenizer", "MODEL"]
    raise PoiseError(
        f"{path} is a log of {source.title}: convert it first with {shlex.join(command)}, then "
        "plan a file of out/imported/rollouts"
    ) from fault
