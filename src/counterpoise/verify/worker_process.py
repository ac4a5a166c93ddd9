"""What the two kinds of worker processes share: math/comparison_worker.py and reward_worker.py.

    the owner                               the worker
    start_worker                            open_replies
                                        <-  {"ready": true}   once, when it has started
    a request, as one line of JSON      ->
                                        <-  replies to it, each one line of JSON
    stop_worker

stop_worker also kills what the worker has started. A worker ends by itself when its input does. It
is a fresh interpreter, not a fork: the owner may hold torch, its threads and a GPU.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TextIO

START_LIMIT_SECONDS = 120.0
START_ATTEMPTS = 3  # in a row: something else on the machine may kill a process while it starts
# A limit of CPU time allows this much wall-clock time, for a busy machine or a process that waits.
WALL_SECONDS_PER_CPU_SECOND = 4


def start_worker(
    module: str, *arguments: str, stderr: int | None = None
) -> subprocess.Popen[bytes]:
    """Start `python -m module`, which can import whatever this process can."""
    search_path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "PYTHONPATH": search_path},
        # A group of its own: Ctrl-C must not reach it before it ignores SIGINT, and stop_worker
        # ends the processes that it has started.
        process_group=0,
    )


def stop_worker(process: subprocess.Popen[bytes]) -> int:
    """Kill the process group and release the pipes; the exit code of the process."""
    # Once its exit code is known, the system may give its number to another process.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    return process.wait()


def open_replies() -> TextIO:
    """In the worker: the stream of its replies. Interrupts are ignored from here on.

    The owner decides what an interrupt means: it may want the work at hand to finish first.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a function or a library prints is never taken for a reply
    for stop_signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop_signal, signal.SIG_IGN)
    return replies
