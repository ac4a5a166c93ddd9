"""The `poise` command: a file for each subcommand, listed here in the order of --help.

Heavy imports wait until a command needs them, so --help is instant.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer

from counterpoise.cli import (
    bench,
    contamination,
    credit,
    demo,
    doctor,
    evaluate,
    experiment,
    import_rollouts,
    look,
    options,
    plan,
    report,
    study,
    track,
    train,
    verify_check,
    warmup,
)
from counterpoise.cli.app import app
from counterpoise.errors import PoiseError
from counterpoise.run.interrupts import terminated_is_interrupted
from counterpoise.terminal import echo_message, replace_unencodable

app.command()(demo.demo)
app.command()(train.train)
app.command()(warmup.warmup)
app.command()(plan.plan)
app.command()(report.report)
app.command()(track.track)
app.command("import")(import_rollouts.import_rollouts)
app.command()(study.study)
app.command()(experiment.experiment)
app.command("eval")(evaluate.evaluate)
app.command()(look.look)
app.command()(credit.credit)
app.command()(options.options)
app.command()(contamination.contamination)
app.command("verify-check")(verify_check.verify_check)
app.command()(bench.bench)
app.command()(doctor.doctor)


# After Ctrl-C or SIGTERM; those in SAID know more, such as the folder, and say it themselves.
REPORT_INTERRUPTS_THEMSELVES = {"demo", "eval", "experiment", "train"}
RESUME_HINTS = {
    "study": "; the same command goes on",
    "warmup": "; unless it said 'saved', the same command with --resume goes on",
}
# Faults of a disk or of a path that was named: not ours, wherever they come up.
MACHINE_ERRORS = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO,
    errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR,
}  # fmt: skip
UsageError: Any = typer.BadParameter.__bases__[0]  # typer exports only what is made of it


def main() -> None:
    """Run the command; a fault of the user's is one line and exit code 2."""
    replace_unencodable()
    check_arguments(sys.argv[1:])
    try:
        with terminated_is_interrupted():
            code = app(prog_name="poise", standalone_mode=False)
    except PoiseError as fault:
        exit_with_error(str(fault))
    except OSError as fault:
        if fault.errno not in MACHINE_ERRORS or fault.filename is None:
            raise
        exit_with_error(f"{fault.filename}: {fault.strerror}; mend that or name another place")
    except UsageError as fault:
        said = fault.format_message().rstrip(".")
        if not said:  # no arguments at all: the help has been printed
            sys.exit(2)
        where = fault.ctx.command_path if fault.ctx else "poise"
        exit_with_error(f"{said[:1].lower()}{said[1:]} (see {where} --help)")
    if code == 130:  # typer's answer to Ctrl-C, or a command's own, which has said so
        command = sys.argv[1] if len(sys.argv) > 1 else ""
        if command not in REPORT_INTERRUPTS_THEMSELVES:
            echo_message(f"poise: stopped{RESUME_HINTS.get(command, '')}")
    sys.exit(code)


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse bytes that are not UTF-8 before anything is done: config.toml cannot hold them, nor
    can safetensors write a model to such a path, which would come out only after the training."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            exit_with_error(f"'{argument}' is not UTF-8: name it otherwise")


def exit_with_error(message: str) -> NoReturn:
    """Say in one line what is wrong, and exit."""
    echo_message(f"poise: {message}")
    sys.exit(2)
