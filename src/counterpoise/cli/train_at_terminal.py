"""A training run at the terminal: live progress, then held-out success before and after. Stopped by
Ctrl-C or SIGTERM it says by which command it goes on."""

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
    """The native engine, watched."""
    from counterpoise.terminal import TerminalConsole

    console = TerminalConsole()
    with explain_interrupt(out):
        with console.status("loading") if console.is_terminal else nullcontext():
            from counterpoise.cli.progress_display import LiveDisplay
            from counterpoise.loop import train as train_run
            from counterpoise.store.resume import STRICT
        with LiveDisplay(console) as display:
            folder = train_run(
                run, out, resume=resume, permissions=permissions or STRICT, watch=display
            )
        print_results(run, folder, console)


def train_by_trl(
    run: RunConfig, out: Path, *, resume: bool, permissions: ResumePermissions | None = None
) -> None:
    """The same run through TRL; of several processes the first one tells."""
    from counterpoise.terminal import TerminalConsole

    console = TerminalConsole(quiet=not _is_first_process())
    with explain_interrupt(out):
        with console.status("loading") if console.is_terminal else nullcontext():
            from counterpoise.cli.progress_display import LiveDisplay
            from counterpoise.hosts.trl.run import train as train_run
            from counterpoise.store.resume import STRICT
        with LiveDisplay(console) as display:
            folder = train_run(
                run, out, resume=resume, permissions=permissions or STRICT, watch=display
            )
        if not console.quiet:
            print_results(run, folder, console)


def train_by_verl(run: RunConfig, out: Path, *, resume: bool) -> None:
    """The same run through verl, which does its own telling."""
    from counterpoise.hosts.verl.run import launch_verl

    with explain_interrupt(out):
        launch_verl(run, out, resume=resume)


@contextmanager
def explain_interrupt(out: Path) -> Iterator[None]:
    """Around what trains in `out`."""
    try:
        yield
    except KeyboardInterrupt:
        if _is_first_process():
            echo_message(f"poise: stopped{_resume_hint(out)}")
        raise


def _is_first_process() -> bool:
    """Of the processes that torch's launcher started."""
    return os.environ.get("RANK", "0") == "0"


def _resume_hint(out: Path) -> str:
    from counterpoise.store.folder import is_run

    if not is_run(out):
        return " before anything was written"
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # the launcher's own words are not known here
        return f"; the same launcher goes on with train --resume --out {shlex.quote(str(out))}"
    again = [*command_prefix(), "train", "--resume", "--out", str(out)]
    return f"; it goes on from its last checkpoint by: {shlex.join(again)}"


def command_prefix() -> list[str]:
    """How this command was called: `poise` where the shell finds it, else with its path."""
    called = Path(sys.argv[0])
    if called.name != "poise":
        return [sys.executable, "-m", "counterpoise.cli"]
    found = shutil.which("poise")
    same = found is not None and called.exists() and Path(found).samefile(called)
    return ["poise"] if same else [str(called)]


def print_results(run: RunConfig, folder: RunFolder, console: Console) -> None:
    """What the run brought, and where it lies."""
    from rich.text import Text

    from counterpoise.config.evaluation_settings import by_setting
    from counterpoise.lab.choose_page import write_report
    from counterpoise.run.heldout import Success

    for setting, judged in by_setting(folder.read("evaluations")).items():
        first, last = (Success.of(record) for record in (judged[0], judged[-1]))
        at = f" at {setting}" if len(run.evaluate.settings) > 1 else ""
        told = Text.assemble(f"held-out success{at} {first} -> ", (str(last), "bold"))
        console.print(told, highlight=False, soft_wrap=True)
    console.print(f"run    {folder.path}", highlight=False, markup=False, soft_wrap=True)
    if run.store.report:
        try:
            said = f"report {write_report(folder.path)}"
        except ModuleNotFoundError as fault:  # a machine that only trains may lack what draws
            said = f"no report: {fault.name} is missing here; `poise report` where it is"
        console.print(said, highlight=False, markup=False, soft_wrap=True)


def find_unused_folder(base: Path) -> Path:
    """out/demo, or the first of out/demo-2, -3, ... that is free."""
    path, number = base, 1
    while path.exists() and not (path.is_dir() and not any(path.iterdir())):
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path
