"""`poise train`: train a model with the options of a TOML file or a preset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterpoise.cli.app import OutOption, SetOption
from counterpoise.cli.flags import takes_flags
from counterpoise.errors import PoiseError
from counterpoise.terminal import echo

if TYPE_CHECKING:
    from counterpoise.config import RunConfig
    from counterpoise.store.resume import ResumePermissions

FromStart = Annotated[
    bool, typer.Option("--from-start", help="With --resume: discard the run and start it again.")
]
AcceptMissingLogs = Annotated[
    bool,
    typer.Option(
        "--accept-missing-logs", help="With --resume: continue although earlier logs are lost."
    ),
]


@dataclass(frozen=True)
class TrainFlags:
    config: Annotated[
        str | None, typer.Argument(help="A TOML file, or the name of a preset, such as demo.")
    ] = None
    out: OutOption = None
    sets: SetOption = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False
    from_start: FromStart = False
    accept_missing_logs: AcceptMissingLogs = False
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check options and data, print what the run needs; do not train."
        ),
    ] = False
    engine: Annotated[
        str | None,
        typer.Option("--engine", "-e", help="The trainer: native (default), trl or verl."),
    ] = None
    show: Annotated[
        bool, typer.Option("--print", help="Print what --engine would be given, and exit.")
    ] = False


@takes_flags
def train(flags: TrainFlags) -> None:
    """Train a policy: sample, verify, credit, balance, compose, update.

    - `poise train demo --out out/first`
    - `poise train demo --out out/shuffled --set batch.composer=shuffled`
    - `poise train --resume --out out/first`
    - `poise train qwen3-1.7b-base --dry-run`
    - `poise train qwen3-1.7b-base --engine verl --print`

    With --engine, TRL or verl trains the same run; options that it cannot honour are refused.
    """
    from counterpoise.hosts.choose_engine import choose_engine
    from counterpoise.run.trackers.tracker import check_installed
    from counterpoise.run.try_plugins import check_plugins

    engine_name = choose_engine(flags.engine, flags.out, resume=flags.resume)
    permissions = _resume_permissions(
        engine_name, flags.from_start, flags.accept_missing_logs, resume=flags.resume
    )
    run = _resolve_run(
        flags.config,
        flags.out,
        flags.sets or [],
        resume=flags.resume,
        from_start=flags.from_start,
    )
    # Import the user's own functions now: a mistake in them should not wait for the model to load.
    check_plugins(run)
    if engine_name != "native":
        _train_with_engine(
            engine_name,
            run,
            flags.out,
            resume=flags.resume,
            permissions=permissions,
            show=flags.show,
            dry_run=flags.dry_run,
        )
        return
    if flags.show:
        raise PoiseError(
            "--print shows the configuration of another engine: add --engine trl or --engine verl"
        )
    if flags.dry_run:
        check_installed(run.track.to)
        _print_dry_run(run)
        return
    if flags.out is None:
        raise PoiseError("--out is missing: the folder to write the run to")
    from counterpoise.cli.train_at_terminal import train_natively

    train_natively(run, flags.out, resume=flags.resume, permissions=permissions)


def _resolve_run(
    config: str | None, out: Path | None, sets: list[str], *, resume: bool, from_start: bool
) -> RunConfig:
    """The run's options: from the file, or from the run folder that is resumed."""
    from counterpoise.config.load import load_config
    from counterpoise.store.resume import load_config_to_resume

    new_run = load_config(config, sets) if config else None
    if resume:
        if out is None:
            raise PoiseError("--resume needs --out: the folder of the run to continue")
        return load_config_to_resume(out, new_run, sets, from_start=from_start)
    if new_run is None:
        raise PoiseError(
            "name a run, as in: poise train demo --out out/demo (a preset) or poise train FILE.toml"
        )
    return new_run


def _resume_permissions(
    engine: str, from_start: bool, accept_missing_logs: bool, *, resume: bool
) -> ResumePermissions:
    """What --resume may discard, according to the other flags."""
    from counterpoise.store.resume import ResumePermissions

    # Each flag permits a loss, so it must not be ignored silently where it has no meaning.
    flags = {"--from-start": from_start, "--accept-missing-logs": accept_missing_logs}
    for flag in (name for name, is_set in flags.items() if is_set):
        if not resume:
            raise PoiseError(f"{flag} only applies to a resumed run: add --resume")
        if engine == "verl":
            raise PoiseError(
                f"{flag} does not apply to verl, which resumes from its own checkpoints: "
                "leave it out"
            )
    return ResumePermissions(from_start=from_start, missing_logs=accept_missing_logs)


def _print_dry_run(run: RunConfig, engine: str = "native") -> None:
    """Print what the run would do and need, after trying its data and plugins."""
    from counterpoise.model.load import check_model_source
    from counterpoise.run.estimate import describe_run
    from counterpoise.run.try_plugins import try_plugins

    # verl's machines may have folders that this one lacks; `scratch` means random weights.
    if engine != "verl" and run.model.name != "scratch":
        check_model_source(run.model.name, check_parent=True)
    echo("\n".join([describe_run(run), *try_plugins(run, engine)]))


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
    """Train with TRL or verl, or print the arguments that it would be given."""
    from counterpoise.hosts.trl import run_options
    from counterpoise.hosts.verl import command

    # This raises an error for options that the engine cannot honour, so it comes first.
    engine_arguments = (
        run_options.format_arguments(run) if engine == "trl" else command.format_command(run, out)
    )
    # The printed command reads files of the run folder, so they have to exist before it is used.
    if engine == "verl" and show and out and not dry_run and not resume:
        from counterpoise.hosts.verl.run import prepare_folder

        prepare_folder(run, out)
    if dry_run:
        _print_dry_run(run, engine)
    if show:
        echo(engine_arguments)
    if show or dry_run:
        return
    if out is None:
        raise PoiseError("--out is missing: the folder to write the run to")
    from counterpoise.cli.train_at_terminal import train_with_trl, train_with_verl

    if engine == "trl":
        train_with_trl(run, out, resume=resume, permissions=permissions)
    else:
        train_with_verl(run, out, resume=resume)
