"""`poise train`: run a file, and say at the end what it brought."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterpoise.cli.app import Out, Set
from counterpoise.errors import PoiseError
from counterpoise.terminal_text import echo

if TYPE_CHECKING:
    from counterpoise.config import RunConfig


def train(
    config: Annotated[
        str | None, typer.Argument(help="A TOML file, or a preset of runs/ by name.")
    ] = None,
    out: Out = None,
    sets: Set = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved run and its needs; read its data.")
    ] = False,
    engine: Annotated[
        str | None, typer.Option("--engine", "-e", help="native (default), trl or verl.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--print", help="Print what the engine would be given, and stop.")
    ] = False,
) -> None:
    """Train a policy: sample, verify, credit, balance, compose, update.

    - `poise train runs/demo.toml --out out/first`
    - `poise train runs/demo.toml --out out/shuffled --set batch.composer=shuffled`
    - `poise train --resume --out out/first`
    - `poise train qwen3-1.7b-base --dry-run`
    - `poise train qwen3-1.7b-base --engine verl --print`

    Another engine than the native one trains the same run, or stops and names the options that it
    cannot honour.
    """
    from counterpoise.engine.choose import choose
    from counterpoise.rehearse import check_loads
    from counterpoise.runfile import load_config
    from counterpoise.track.installed import check_installed

    chosen = choose(engine, out, resume=resume)
    if resume:
        from counterpoise.store.resume import config_to_resume

        if out is None:
            raise PoiseError("--resume needs --out: the folder of the run to go on with")
        run = config_to_resume(out, load_config(config, sets or []) if config else None, sets or [])
    elif config is None:
        raise PoiseError("name a run: poise train runs/demo.toml --out DIR")
    else:
        run = load_config(config, sets or [])
    check_loads(run)
    if chosen != "native":
        _train_by(chosen, run, out, resume=resume, show=show, dry_run=dry_run)
        return
    if show:
        raise PoiseError("--print shows what another engine is given: add --engine verl")
    if dry_run:
        check_installed(run.track.to)
        _describe(run)
        return
    if out is None:
        raise PoiseError("--out is missing: the folder to write the run to")
    from counterpoise.cli.running import train_natively

    train_natively(run, out, resume=resume)


def _describe(run: RunConfig, engine: str = "native") -> None:
    from counterpoise.estimate import describe_run
    from counterpoise.rehearse import rehearse

    echo("\n".join([describe_run(run), *rehearse(run, engine)]))


def _train_by(
    engine: str, run: RunConfig, out: Path | None, *, resume: bool, show: bool, dry_run: bool
) -> None:
    """Through TRL or verl; what they cannot honour has stopped the run before it is shown."""
    from counterpoise.engine import trl, verl_command

    shown = trl.shown(run) if engine == "trl" else verl_command.shown(run, out)
    if engine == "verl" and show and out and not dry_run and not resume:
        from counterpoise.engine.verl_run import prepare

        prepare(run, out)
    if dry_run:
        _describe(run, engine)
    if show:
        echo(shown)
    if show or dry_run:
        return
    if out is None:
        raise PoiseError("--out is missing: the folder to write the run to")
    from counterpoise.cli.running import train_by_trl, train_by_verl

    by = train_by_trl if engine == "trl" else train_by_verl
    by(run, out, resume=resume)
