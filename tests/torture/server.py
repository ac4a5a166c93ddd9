"""A process that has loaded everything once; every run of the torture is a fork of it.

A forked run is a real process that can be killed, and costs a quarter of a second instead of the
ten of a new interpreter. Clocks advance by one second a call, so that runs write the same bytes.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import io
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import typer.main
from small_run import small_config

from counterpoise.cli import main
from counterpoise.config.load import to_toml
from counterpoise.lab import choose_page
from counterpoise.run import lifecycle

HANG_SECONDS = 120.0
ALLOWED_CODES = (0, 2, 130)
SETS = (
    "loop.iterations=2", "loop.checkpoint_every=1", "loop.keep_checkpoints=2",
    "verify.reward_timeout_seconds=0", "evaluate.every=1", "evaluate.prompts=1",
)  # fmt: skip
# Several ways to run: one model and one task serve all of them, so only options of the loop, of
# what is measured and of what is stored may differ.
VARIANTS: tuple[tuple[str, ...], ...] = (
    (),
    ("loop.iterations=3", "loop.checkpoint_every=2", "loop.keep_checkpoints=1"),
    ("loop.keep_checkpoints=1", "monitor.probe=1", "balance.tau=0", "evaluate.every=2"),
    ("verify.reward_timeout_seconds=60",),  # the reward function has a process of its own
)
WITH_REWARD_PROCESS = 3
PATCHED_PARTS = ("load_policy", "load_run_task", "encode_prompts")  # of run/lifecycle.py
OUTPUT_FOLDER = Path(tempfile.gettempdir())


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int  # exit code; negative: the signal that ended it
    printed: str

    @property
    def has_traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.printed

    @property
    def hung(self) -> bool:
        return self.code == -signal.SIGALRM

    @property
    def is_clean(self) -> bool:
        return self.code in ALLOWED_CODES and not self.has_traceback


class RunServer:
    """Starts runs of the small configurations.

    Example:
        server = RunServer(folder)
        server.start_run(folder / "reference").code == 0
        server.resume_run(folder / "crashed").code == 0
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config_files = [folder / f"small-{number}.toml" for number in range(len(VARIANTS))]
        for path, sets in zip(self.config_files, VARIANTS, strict=True):
            path.write_text(to_toml(small_config(folder, *SETS, *sets)))
        self._patch_slow_parts()

    def _patch_slow_parts(self) -> None:
        config = small_config(self.folder, *SETS)
        policy = lifecycle.load_policy(config.model)
        task = lifecycle.load_run_task(config)
        prompts = lifecycle.encode_prompts(policy, task.train, config, lifecycle.RunObserver())
        patched: Any = lifecycle
        self.slow_parts = {name: getattr(lifecycle, name) for name in PATCHED_PARTS}
        # The warm-up trains copies in this process; forks get the model as it was loaded.
        patched.load_policy = lambda options: copy.deepcopy(policy)
        patched.load_run_task = lambda config: task
        patched.encode_prompts = lambda *arguments: prompts
        patched_page: Any = choose_page
        write_report = choose_page.write_report
        patched_page.write_report = lambda path, out=None: (
            write_report(path, out) if out else path / "report.html"  # after training: not needed
        )
        patched_typer: Any = typer.main
        patched_typer.get_command = functools.cache(typer.main.get_command)
        # Everything that is imported or compiled on first use is, before the first fork.
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            for number in range(WITH_REWARD_PROCESS):
                out = self.folder / "warm-up" / str(number)
                run_command(["train", str(self.config_files[number]), "--out", str(out)])
                (out / "finished.json").unlink()
                run_command(["train", "--resume", "--out", str(out)])
        patched.load_policy = lambda options: policy
        gc.collect()
        gc.freeze()

    def restore_slow_parts(self) -> None:
        """Load models, tasks and prompts as a user's run does; for a child."""
        for name, function in self.slow_parts.items():
            setattr(lifecycle, name, function)

    def start_run(
        self, out: Path, variant: int = 0, before: Callable[[], object] = lambda: None
    ) -> Outcome:
        words = ["train", str(self.config_files[variant]), "--out", str(out)]
        return run_in_fork(lambda: run_command(words), before)

    def resume_run(
        self, out: Path, *flags: str, before: Callable[[], object] = lambda: None
    ) -> Outcome:
        words = ["train", "--resume", "--out", str(out), *flags]
        return run_in_fork(lambda: run_command(words), before)

    def fork_start(self, out: Path, output: Path, variant: int = 0) -> int:
        """Start a run and return its process id, for signals from outside."""
        words = ["train", str(self.config_files[variant]), "--out", str(out)]
        return fork_child(lambda: run_command(words), output)


def run_command(words: list[str]) -> int:
    """`poise WORDS` in this process; its exit code."""
    sys.argv = ["poise", *words]
    try:
        main()
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


def freeze_clock() -> None:
    seconds = iter(range(1, 1 << 40))
    patched: Any = time
    patched.perf_counter = lambda: float(next(seconds))


def fork_child(function: Callable[[], int], output: Path) -> int:
    """Fork; the child calls the function and ends with its result. Returns the child's pid."""
    pid = os.fork()
    if not pid:
        _become_child(function, output)
    return pid


def _become_child(function: Callable[[], int], output: Path) -> NoReturn:
    code = 1
    try:
        gc.freeze()
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
        freeze_clock()
        code = function()
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def run_in_fork(
    function: Callable[[], int], before: Callable[[], object] = lambda: None
) -> Outcome:
    """The outcome of the function in a child; `before` is called there first."""
    output = OUTPUT_FOLDER / f"torture.{os.getpid()}.txt"

    def armed() -> int:
        before()
        return function()

    pid = fork_child(armed, output)
    status = os.waitpid(pid, 0)[1]
    return Outcome(os.waitstatus_to_exitcode(status), output.read_text(errors="replace"))


# -- comparing ------------------------------------------------------------------------------------


def folder_content(folder: Path) -> dict[str, Any]:
    """Everything in a folder: bytes of files, None for folders; checksums as a set of lines."""
    content: dict[str, Any] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        content[name] = None if path.is_dir() else path.read_bytes()
        if path.name == "checksums.jsonl":  # a resumed run writes config.toml once more
            content[name] = set(path.read_bytes().splitlines())
    return content


def differing_names(folder: Path, reference: dict[str, Any]) -> list[str]:
    content = folder_content(folder)
    return sorted(
        name
        for name in content.keys() | reference.keys()
        if content.get(name, b"absent") != reference.get(name, b"absent")
    )
