"""`poise train`: run a file, and say at the end what it brought."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterpoise.cli.app import OutOption, SetOption
from counterpoise.errors import PoiseError
from counterpoise.terminal import echo

if TYPE_CHECKING:
    from counterpoise.config import RunConfig
    from counterpoise.store.resume import ResumePermissions

FromStart = Annotated[
    bool, typer.Option("--from-start", help="With --resume: discard the run, start it again.")
]
AcceptMissingLogs = Annotated[
    bool,
    typer.Option("--accept-missing-logs", help="With --resume: go on although past logs are lost."),
]


def train(
    config: Annotated[
        str | None, typer.Argument(help="A TOML file, or a preset of runs/ by name.")
    ] = None,
    out: OutOption = None,
    sets: SetOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    from_start: FromStart = False,
    accept_missing_logs: AcceptMissingLogs = False,
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
    from counterpoise.hosts.choose_engine import choose_engine
    from counterpoise.run.trackers.tracker import check_installed
    from counterpoise.run.try_plugins import check_loads

    chosen = choose_engine(engine, out, resume=resume)
    permissions = _resume_permissions(chosen, from_start, accept_missing_logs, resume=resume)
    run = _resolve_run(config, out, sets or [], resume=resume)
    check_loads(run)
    if chosen != "native":
        _train_with_engine(
            chosen, run, out, resume=resume, permissions=permissions, show=show, dry_run=dry_run
        )
        return
    if show:
        raise PoiseError("--print shows what another engine is given: add --engine verl")
    if dry_run:
        check_installed(run.track.to)
        _print_dry_run(run)
        return
    if out is None:
        raise PoiseError("--out is missing: the folder to write the run to")
    from counterpoise.cli.train_at_terminal import train_natively

    train_natively(run, out, resume=resume, permissions=permissions)


def _resolve_run(
    config: str | None, out: Path | None, sets: list[str], *, resume: bool
) -> RunConfig:
    """Every option of the run: those of the file, or of the folder that is resumed."""
    from counterpoise.config.load import load_config
    from counterpoise.store.resume import config_to_resume

    given = load_config(config, sets) if config else None
    if resume:
        if out is None:
            raise PoiseError("--resume needs --out: the folder of the run to go on with")
        return config_to_resume(out, given, sets)
    if given is None:
        raise PoiseError("name a run: poise train runs/demo.toml --out DIR")
    return given


def _resume_permissions(
    engine: str, from_start: bool, accept_missing_logs: bool, *, resume: bool
) -> ResumePermissions:
    """What the flags beside --resume allow it to lose."""
    from counterpoise.store.resume import ResumePermissions

    flags = {"--from-start": from_start, "--accept-missing-logs": accept_missing_logs}
    for flag in (name for name, given in flags.items() if given):
        if not resume:
            raise PoiseError(f"{flag} says how a run is resumed: add --resume")
        if engine == "verl":
            raise PoiseError(f"{flag}: verl resumes by its own rules; leave it out")
    return ResumePermissions(from_start=from_start, missing_logs=accept_missing_logs)


def _print_dry_run(run: RunConfig, engine: str = "native") -> None:
    from counterpoise.run.estimate import describe_run
    from counterpoise.run.try_plugins import rehearse

    echo("\n".join([describe_run(run), *rehearse(run, engine)]))


def _train_with_engine(
    engine: str,
    run: RunConfig,
    out: Path | None,
    *,
    resume: bool,
    permissions: ResumePermissions,
    show: bool,
    dry_run: bool,
) -> None:
    """Through TRL or verl; what they cannot honour has stopped the run before it is shown."""
    from counterpoise.hosts.trl import run_options
    from counterpoise.hosts.verl import command

    shown = (
        run_options.format_arguments(run) if engine == "trl" else command.format_command(run, out)
    )
    if engine == "verl" and show and out and not dry_run and not resume:
        from counterpoise.hosts.verl.run import prepare_folder

        prepare_folder(run, out)
    if dry_run:
        _print_dry_run(run, engine)
    if show:
        echo(shown)
    if show or dry_run:
        return
    if out is None:
        raise PoiseError("--out is missing: the folder to write the run to")
    from counterpoise.cli.train_at_terminal import train_by_trl, train_by_verl

    if engine == "trl":
        train_by_trl(run, out, resume=resume, permissions=permissions)
    else:
        train_by_verl(run, out, resume=resume)
