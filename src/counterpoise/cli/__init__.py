"""The `poise` command: one file per subcommand, registered here in the order of --help.

Commands import torch and the other heavy packages when they run, so --help is instant.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer

from counterpoise.cli import (
    audit,
    bench,
    check,
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
    replay,
    report,
    serve,
    study,
    trace,
    track,
    train,
    verify_check,
    warmup,
)
from counterpoise.cli.app import app
from counterpoise.errors import PoiseError
from counterpoise.run.interrupts import sigterm_as_interrupt
from counterpoise.terminal import echo_message, replace_unencodable

app.command()(demo.demo)
app.command()(train.train)
app.command()(warmup.warmup)
app.command()(plan.plan)
app.command()(report.report)
app.command()(serve.serve)
app.command()(audit.audit)
app.command()(track.track)
app.command()(check.check)
app.command("import")(import_rollouts.import_rollouts)
app.command()(replay.replay)
app.command()(study.study)
app.command()(experiment.experiment)
app.command("eval")(evaluate.evaluate)
app.command()(look.look)
app.command()(trace.trace)
app.command()(credit.credit)
app.command()(options.options)
app.command()(contamination.contamination)
app.command("verify-check")(verify_check.verify_check)
app.command()(bench.bench)
app.command()(doctor.doctor)


# These commands print their own message after Ctrl-C or SIGTERM, because it names the run folder.
REPORT_INTERRUPTS_THEMSELVES = {"demo", "eval", "experiment", "train"}
RESUME_HINTS = {
    "replay": "; the same command continues",
    "study": "; run the same command again to continue",
    "warmup": "; to continue, run it again with --resume (not needed if it printed 'saved')",
}
# Errors of the disk or of a path that the user gave: they can occur anywhere and are not bugs.
MACHINE_ERRORS = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO,
    errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR,
}  # fmt: skip
OUT_OF_MEMORY = (
    "out of memory: end other programs, or give this command less to do; the files it has "
    "written are intact"
)
# Names of TRL's and verl's options -> the flags of `poise train` that do the same.
FLAGS_OF_OTHER_TRAINERS = {
    "output_dir": "--out",
    "default_local_dir": "--out",
    "resume_from_checkpoint": "--resume",
    "resume_mode": "--resume",
}
UsageError: Any = typer.BadParameter.__bases__[0]  # typer does not export the class itself


def main() -> None:
    """Run the command. A user's mistake becomes one line on stderr and exit code 2."""
    replace_unencodable()  # before the first output, which may be an error message
    check_arguments(sys.argv[1:])
    try:
        # Without standalone mode typer raises its errors instead of printing a box of ten lines.
        with sigterm_as_interrupt():
            code = app(prog_name="poise", standalone_mode=False)
    except KeyboardInterrupt:  # before typer takes over, which turns later ones into code 130
        echo_message("poise: stopped before anything was done")
        sys.exit(130)
    except PoiseError as fault:
        exit_with_error(str(fault))
    except ModuleNotFoundError as fault:  # a machine that only trains may lack chart packages
        from counterpoise.report.charts.vega import explain_missing_package

        message = explain_missing_package(fault)
        if message is None:
            raise
        exit_with_error(message)
    except MemoryError:
        exit_with_error(OUT_OF_MEMORY)
    except OSError as fault:
        if fault.errno == errno.ENOMEM:  # the system's own calls report it so, os.listdir for one
            exit_with_error(OUT_OF_MEMORY)
        if fault.errno not in MACHINE_ERRORS or fault.filename is None:
            raise
        exit_with_error(f"{fault.filename}: {fault.strerror}; correct that or choose another path")
    except UsageError as fault:
        message = fault.format_message().rstrip(".")
        if not message:  # called without any arguments: the help has been printed
            sys.exit(2)
        command_path = fault.ctx.command_path if fault.ctx else "poise"
        message = f"{message[:1].lower()}{message[1:]}"
        if type(fault).__name__ == "NoSuchOption":
            message = suggest_set(message, fault)
        exit_with_error(f"{message} (see {command_path} --help)")
    # After an interrupt typer returns 130, and so do the commands that report it themselves.
    if code == 130:
        command = sys.argv[1] if len(sys.argv) > 1 else ""
        if command not in REPORT_INTERRUPTS_THEMSELVES:
            echo_message(f"poise: stopped{RESUME_HINTS.get(command, '')}")
    sys.exit(code)


def suggest_set(message: str, fault: Any) -> str:
    """Add a suggestion to the message for an unknown flag: --set update.lr for `--lr`."""
    from counterpoise.config.load import list_options
    from counterpoise.config.search_options import find_remark, suggest_option

    flag = fault.option_name
    flags = {name for parameter in fault.ctx.command.params for name in parameter.opts}
    renamed = FLAGS_OF_OTHER_TRAINERS.get(flag.lstrip("-").replace("-", "_"))
    if renamed in flags:
        return f"no such option: {flag}; did you mean {renamed}?"
    # If the parser has found a similar flag (--resume for --rsume), that is the better guess: then
    # only an option of exactly this name is suggested, none with a similar spelling.
    suggestion = (
        suggest_option(flag, list_options(), exact=bool(fault.possibilities))
        if "--set" in flags
        else None
    )
    if suggestion is None:
        return message
    remark = find_remark(flag)
    return f"no such option: {flag}; did you mean --set {suggestion}=...?{remark and f' {remark}'}"


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse arguments that are not UTF-8.

    config.toml cannot hold them and safetensors cannot write a model to such a path, which would
    otherwise only show when training has finished.
    """
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            exit_with_error(f"'{argument}' is not UTF-8: choose another name")


def exit_with_error(message: str) -> NoReturn:
    """Print one line and exit with code 2."""
    echo_message(f"poise: {message}")
    sys.exit(2)
