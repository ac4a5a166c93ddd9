"""A process that has loaded everything once; every run of the torture is a fork of it.

A forked run is a real process that can be killed, and costs a fraction of a second instead of the
ten of a new interpreter. Clocks advance by one second a call, so that runs write the same bytes.
"""

from __future__ import annotations

import copy
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from small_run import small_config

from counterpoise import loop
from counterpoise.cli import main
from counterpoise.config.load import to_toml
from counterpoise.lab import choose_page

HANG_SECONDS = 300.0
ALLOWED_CODES = (0, 2, 130)
SETS = (
    "loop.iterations=2", "loop.checkpoint_every=1", "loop.keep_checkpoints=2",
    "verify.reward_timeout_seconds=0", "evaluate.every=1", "evaluate.prompts=1",
)  # fmt: skip


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
    """Starts runs of one small configuration.

    Example:
        server = RunServer(folder)
        server.start_run(folder / "reference").code == 0
        server.resume_run(folder / "crashed").code == 0
    """

    def __init__(self, folder: Path, *sets: str) -> None:
        self.folder = folder
        self.config = small_config(folder, *SETS, *sets)
        self.config_file = folder / "small.toml"
        self.config_file.write_text(to_toml(self.config))
        self._patch_slow_parts()

    def _patch_slow_parts(self) -> None:
        policy = loop.load_policy(self.config.model)
        task = loop.load_problems(self.config)
        prompts = loop.encode_prompts(policy, task.train, self.config, loop.RunObserver())
        patched: Any = loop
        loaded_policies = [policy, copy.deepcopy(policy)]
        # The first call is of the warm-up below, which trains its copy in this process; forks see
        # the list as it is afterwards.
        patched.load_policy = lambda options: loaded_policies[-1]
        patched.load_problems = lambda config: task
        patched.encode_prompts = lambda *arguments: prompts
        patched_page: Any = choose_page
        patched_page.write_report = lambda path: path / "report.html"  # not what is tested here
        # Everything that is imported or compiled on first use is, before the first fork.
        loop.train(self.config, self.folder / "warm-up")
        loaded_policies.pop()

    def start_run(self, out: Path, before: Callable[[], object] = lambda: None) -> Outcome:
        words = ["train", str(self.config_file), "--out", str(out)]
        return run_in_fork(lambda: run_command(words), before)

    def resume_run(
        self, out: Path, *flags: str, before: Callable[[], object] = lambda: None
    ) -> Outcome:
        words = ["train", "--resume", "--out", str(out), *flags]
        return run_in_fork(lambda: run_command(words), before)

    def fork_start(self, out: Path, *, resume: bool) -> int:
        """Start a run and return its process id, for signals from outside."""
        words = ["train", "--resume"] if resume else ["train", str(self.config_file)]
        return fork_child(lambda: run_command([*words, "--out", str(out)]), Path(os.devnull))


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
    output = Path(f"/tmp/torture.{os.getpid()}.txt")

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
