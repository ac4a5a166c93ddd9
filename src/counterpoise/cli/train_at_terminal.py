"""Train at the terminal: live progress, then held-out success before and after training.

After Ctrl-C or SIGTERM it prints the command that resumes the run.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from counterpoise.terminal import echo_message

if TYPE_CHECKING:
    from rich.console import Console

    from counterpoise.config import RunConfig
    from counterpoise.store.folder import RunFolder
    from counterpoise.store.resume import ResumePermissions


def train_natively(
    run: RunConfig, out: Path, *, resume: bool, permissions: ResumePermissions | None = None
) -> None:
    """Train with the native engine."""
    from counterpoise.terminal import TerminalConsole

    console = TerminalConsole()
    with explain_interrupt(out):
        # Importing torch takes seconds; the status line shows that something is happening.
        with console.status("loading") if console.is_terminal else nullcontext():
            from counterpoise.cli.progress_display import LiveDisplay
            from counterpoise.loop import train as train_run
            from counterpoise.store.resume import STRICT
        with LiveDisplay(console) as display:
            folder = train_run(
                run, out, resume=resume, permissions=permissions or STRICT, observer=display
            )
        print_results(run, folder, console)


def train_with_trl(
    run: RunConfig, out: Path, *, resume: bool, permissions: ResumePermissions | None = None
) -> None:
    """Train with TRL. With several processes, only the first one prints."""
    from counterpoise.terminal import TerminalConsole

    console = TerminalConsole(quiet=not _is_first_process())
    with explain_interrupt(out):
        with console.status("loading") if console.is_terminal else nullcontext():
            from counterpoise.cli.progress_display import LiveDisplay
            from counterpoise.hosts.trl.run import train as train_run
            from counterpoise.store.resume import STRICT
        with LiveDisplay(console) as display:
            folder = train_run(
                run, out, resume=resume, permissions=permissions or STRICT, observer=display
            )
        if not console.quiet:
            print_results(run, folder, console)


def train_with_verl(run: RunConfig, out: Path, *, resume: bool) -> None:
    """Train with verl, which prints its own progress."""
    from counterpoise.hosts.verl.run import launch_verl

    with explain_interrupt(out):
        launch_verl(run, out, resume=resume)


@contextmanager
def explain_interrupt(out: Path) -> Iterator[None]:
    """Print how to resume the run in `out` if the block is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        if _is_first_process():
            echo_message(f"poise: stopped{_resume_hint(out)}")
        raise


def _is_first_process() -> bool:
    """Whether this is the first of the processes that torch's launcher started."""
    return os.environ.get("RANK", "0") == "0"


def _resume_hint(out: Path) -> str:
    from counterpoise.store.folder import is_run

    if not is_run(out):
        return " before anything was written"
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # how the launcher was called is not known here
        return (
            "; to resume it, use the same launcher with: "
            f"train --resume --out {shlex.quote(str(out))}"
        )
    command = [*command_prefix(), "train", "--resume", "--out", str(out)]
    return f"; resume it from its last checkpoint with: {shlex.join(command)}"


def command_prefix() -> list[str]:
    """How to call `poise` again: by name if the shell finds this program, else by its path."""
    program = Path(sys.argv[0])
    if program.name != "poise":
        return [sys.executable, "-m", "counterpoise.cli"]
    # `poise` on the PATH may belong to another environment than the one that runs now.
    on_path = shutil.which("poise")
    is_same = on_path is not None and program.exists() and Path(on_path).samefile(program)
    return ["poise"] if is_same else [str(program)]


def print_results(run: RunConfig, folder: RunFolder, console: Console) -> None:
    """Print held-out success before and after, and the paths of the run and its report."""
    from rich.text import Text

    from counterpoise.config.evaluation_settings import group_by_setting
    from counterpoise.run.heldout import HeldoutSuccess, with_same_quantity

    for setting, evaluations in group_by_setting(folder.read("evaluations")).items():
        success_before, success_after = with_same_quantity(
            HeldoutSuccess.from_record(evaluations[0]), HeldoutSuccess.from_record(evaluations[-1])
        )
        setting_name = f" at {setting}" if len(run.evaluate.settings) > 1 else ""
        line = Text.assemble(
            f"held-out {success_after.quantity}{setting_name} {success_before} -> ",
            (str(success_after), "bold"),
        )
        console.print(line, highlight=False, soft_wrap=True)
    console.print(f"run    {folder.path}", highlight=False, markup=False, soft_wrap=True)
    if run.store.report:
        try:
            from counterpoise.lab.choose_page import write_report

            report_line = f"report {write_report(folder.path)}"
        except ModuleNotFoundError as fault:  # a machine that only trains may lack chart packages
            report_line = (
                f"no report: {fault.name} is not installed; run `poise report` on a machine that "
                "has it"
            )
        console.print(report_line, highlight=False, markup=False, soft_wrap=True)


def find_unused_folder(base: Path) -> Path:
    """`base`, or the first of base-2, base-3, ... that does not exist or is empty."""
    path, number = base, 1
    while path.exists() and not (path.is_dir() and not any(path.iterdir())):
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path
