"""`subprocess.Popen` and `subprocess.run` without the start of an interpreter.

Importing torch and transformers takes a process about ten CPU seconds, and pytest has done it
already. A forked child is a real process (it has a pid, is killed by signals, has streams, an
environment and a session of its own) that begins where a fresh interpreter stands after its
imports. Only `python -m counterpoise.cli ...`, the fork server of experiments and `python -c CODE
...` can be started.

Forking a process that has trained on a GPU is not possible, so there it is a fresh interpreter.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import runpy
import signal
import subprocess
import sys
import traceback
import types
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import torch

# What `poise train` imports on its way to the first iteration.
PRELOADED = (
    "counterpoise.loop",
    "counterpoise.cli.train_at_terminal",
    "counterpoise.report.panels.learning",
    "transformers.models.qwen3.modeling_qwen3",
)


@functools.cache
def preload() -> None:
    for module in PRELOADED:
        import_module(module)


class ForkedPopen(subprocess.Popen):
    """Popen whose child is a fork of this process; everything else is Popen's own."""

    def _execute_child(self, *arguments: Any) -> None:
        names = list(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]
        start = types.SimpleNamespace(**dict(zip(names, arguments, strict=True)))
        if start.args[0] != sys.executable or start.args[1:3] not in (
            ["-m", "counterpoise.cli"],
            ["-m", "counterpoise.lab.experiments.fork_server"],
            ["-c", start.args[2]],
        ):
            raise ValueError(f"{start.args} cannot be forked: use subprocess itself")
        preload()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            become_the_child(start)
        self._child_created = True
        self._close_pipe_fds(
            start.p2cread, start.p2cwrite, start.c2pread, start.c2pwrite,
            start.errread, start.errwrite,
        )  # fmt: skip


def is_open(descriptor: int) -> bool:
    return Path(f"/proc/self/fd/{descriptor}").exists()


def become_the_child(start: types.SimpleNamespace) -> NoReturn:
    """Run the command and leave, never to return into pytest."""
    code = 1
    try:
        gc.freeze()  # what belongs to the parent is not collected, and so not removed, here
        prepare(start)
        # After a fork torch makes its thread pool anew when it is first needed. Two threads that
        # need it at once, as when transformers loads a model, may find none.
        torch.set_num_threads(torch.get_num_threads())
        code = run_command(list(start.args))
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                code = code or 1
        os._exit(code)


def prepare(start: types.SimpleNamespace) -> None:
    """Streams, descriptors, environment and signals as exec and a new interpreter leave them."""
    if start.start_new_session:
        os.setsid()
    if start.process_group >= 0:
        os.setpgid(0, start.process_group)
    # Copied above 2 first, so that no copy overwrites one that is still needed.
    streams = (start.p2cread, start.c2pwrite, start.errwrite)
    copies = [os.dup(source) if source >= 0 else -1 for source in streams]
    for stream, copy in enumerate(copies):
        if copy >= 0:
            os.dup2(copy, stream)
    kept = {0, 1, 2, *start.pass_fds}
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if descriptor not in kept and is_open(descriptor):
            os.close(descriptor)
    sys.stdin = sys.__stdin__ = os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1, closefd=False)
    if start.cwd is not None:
        os.chdir(start.cwd)
    if start.env is not None:
        os.environ.clear()
        os.environ.update(start.env)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if start.preexec_fn is not None:
        start.preexec_fn()


def run_command(words: list[str]) -> int:
    """The exit code of `python -m MODULE ...` or `python -c CODE ...`."""
    sys.orig_argv = words
    sys.argv = words[1:2] + words[3:]
    try:
        if words[1] == "-m":
            runpy.run_module(words[2], run_name="__main__", alter_sys=True)
        else:
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(words[2], main.__dict__)
    except SystemExit as stopped:
        if stopped.code is None or isinstance(stopped.code, int):
            return stopped.code or 0
        print(stopped.code, file=sys.stderr)
        return 1
    return 0


Popen: type[subprocess.Popen] = subprocess.Popen if torch.cuda.is_available() else ForkedPopen


def run(command: list[str], *, check: bool = False, **options: Any) -> subprocess.CompletedProcess:
    """`subprocess.run(command, capture_output=True, text=True)`."""
    timeout = options.pop("timeout", None)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Popen(command, **streams, **options) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
    if check:
        done.check_returncode()
    return done


class ForkingSubprocess:
    """Stands for the module `subprocess` in a module of ours that starts `poise`."""

    Popen = Popen
    DEVNULL, PIPE, STDOUT = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
    TimeoutExpired = subprocess.TimeoutExpired
