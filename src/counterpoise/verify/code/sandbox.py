"""Run untrusted programs: one locked process for each, with limits, killed as a group.

    limits     CPU time, wall-clock time, memory, file size, length of the reply; everywhere
    layers     namespaces, landlock, seccomp (kernel_protections.py), those that the system has

A process gets no environment variables, no input and no descriptors but the pipe of its reply. It
leads a process group, which is killed when it has replied, when its time is over and when it ends,
and its folder is removed. `describe_protection` says in one line what is missing on a system.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import counterpoise
from counterpoise.errors import PoiseError
from counterpoise.verify.code.kernel_protections import (
    LANDLOCK,
    LAYER_FUNCTIONS,
    NAMESPACES,
    SECCOMP,
)
from counterpoise.verify.worker_process import WALL_SECONDS_PER_CPU_SECOND

LAYERS = tuple(LAYER_FUNCTIONS)
LIMITS_ONLY = "limits only"
START_SECONDS = 20.0  # added to the wall-clock limit, for the interpreter's start on a busy machine
MEMORY_BYTES = 512 << 20
MAX_REPLY_BYTES = 1 << 20
CPU_LIMIT_SIGNALS = (signal.SIGXCPU, signal.SIGKILL)

Outcome = Literal["ran", "timeout", "crash"]


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """What one process did.

    Example:
        SandboxResult("ran", [{"value": 6}, {"error": "IndexError"}])
    """

    outcome: Outcome
    replies: list[dict[str, Any]]  # of the checks, in order; none unless it ran


def run_sandboxed(
    program: str,
    checks: Sequence[Sequence[str]],
    cpu_seconds: float = 5.0,
    layers: Sequence[str] | None = None,
) -> SandboxResult:
    """Run a program and its checks (sandboxed_process.py) with `layers`; None: all there are."""
    layers = available_layers() if layers is None else layers
    with tempfile.TemporaryDirectory(prefix="poise-code-", ignore_cleanup_errors=True) as folder:
        job = {
            "program": program,
            "checks": [list(check) for check in checks],
            "folder": folder,
            "layers": list(layers),
            "cpu_seconds": max(1, math.ceil(cpu_seconds)),  # the kernel counts whole seconds
            "memory_bytes": MEMORY_BYTES,
        }
        wall_seconds = WALL_SECONDS_PER_CPU_SECOND * cpu_seconds + START_SECONDS
        process = _start(folder)
        try:
            reply = _exchange(process, job, wall_seconds)
        finally:
            exit_code = _kill_group(process)
    if reply is None:
        return SandboxResult("timeout", [])
    replies = _parse_reply(reply, len(checks))
    if replies is None:
        # At the CPU limit the kernel kills the process by a signal: its exit code is -signum, or
        # 128 + signum if the parent that waits in enter_namespaces passes it on.
        endings = [code for signum in CPU_LIMIT_SIGNALS for code in (-signum, 128 + signum)]
        out_of_time = not reply and exit_code in endings
        return SandboxResult("timeout" if out_of_time else "crash", [])
    return SandboxResult("ran", replies)


@cache
def available_layers() -> tuple[str, ...]:
    """The layers that this system has, found by trying each in a process."""
    if sys.platform != "linux":
        return ()
    return tuple(
        layer for layer in LAYERS if run_sandboxed("", [], layers=[layer]).outcome == "ran"
    )


def name_protection(layers: Sequence[str]) -> str:
    """
    Example:
        >>> name_protection(["landlock", "seccomp"])
        'landlock+seccomp'
    """
    return "+".join(layer for layer in LAYERS if layer in layers) or LIMITS_ONLY


def describe_protection() -> str:
    """One line for the start of a run: what holds programs in, and what does not."""
    layers = available_layers()
    line = f"programs run in a sandbox ({name_protection(layers)})"
    open_ways = []
    if NAMESPACES not in layers and LANDLOCK not in layers:
        open_ways.append("read and write your files")
    if NAMESPACES not in layers and SECCOMP not in layers:
        open_ways += ["use the network", "signal other processes", "leave processes behind"]
    if SECCOMP not in layers:
        open_ways.append("start processes until their time is over")
    if not open_ways:
        return line
    return f"WARNING: {line}, but can {', '.join(open_ways)}: train in a container"


def _start(folder: str) -> subprocess.Popen[bytes]:
    # The program sees no environment variable of this process and, by -S, no installed package.
    package_root = str(Path(counterpoise.__file__).parents[1])
    try:
        return subprocess.Popen(
            [sys.executable, "-S", "-s", "-P", "-m", "counterpoise.verify.code.sandboxed_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONPATH": package_root, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=folder,
            start_new_session=True,
        )
    except OSError as fault:
        raise PoiseError(f"no process for a program can be started: {fault}") from fault


def _exchange(process: subprocess.Popen[bytes], job: Any, limit_seconds: float) -> bytes | None:
    """What the process writes, up to its first line break or its end; None if it takes too long.

    Reading stops beyond MAX_REPLY_BYTES.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it died: nothing will be read
        process.stdin.write(json.dumps(job).encode() + b"\n")
        process.stdin.close()
    deadline = time.monotonic() + limit_seconds
    received = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while b"\n" not in received and len(received) <= MAX_REPLY_BYTES:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return None
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                break
            received += chunk
    return received


def _kill_group(process: subprocess.Popen[bytes]) -> int:
    """End the process with everything that it started; its exit code.

    First it gets 0.2 s to end by itself, so that a process that has closed its reply pipe still
    reports its own exit code.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.2)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    return process.wait()


def _parse_reply(reply: bytes, num_checks: int) -> list[dict[str, Any]] | None:
    """The replies; None if the process did not write them, whatever else it wrote."""
    try:
        replies = json.loads(reply)
    except (ValueError, RecursionError):
        return None
    well_formed = isinstance(replies, list) and all(isinstance(each, dict) for each in replies)
    return replies if well_formed and len(replies) == num_checks else None
