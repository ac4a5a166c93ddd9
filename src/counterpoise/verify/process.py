"""One worker process as its owner sees it: start, send a pair, receive a reply, stop.

A fresh interpreter, not a fork: the owner may hold torch and its threads. It searches the owner's
module path, and nothing else of the owner reaches it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time

START_LIMIT_SECONDS = 120.0


class Worker:
    """A process and the pair it holds. It says that it is ready before it is given one."""

    def __init__(self, compare: str, timeout_seconds: float) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "counterpoise.verify.worker",
                compare,
                str(timeout_seconds),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            process_group=0,  # so that Ctrl-C does not reach it while it starts
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests, self.replies = self.process.stdin, self.process.stdout
        self.ready = False
        self.pair: int | None = None  # index of the pair in hand
        self.deadline = time.monotonic() + START_LIMIT_SECONDS
        self.received = b""

    def send(self, index: int, pair: tuple[str, str], timeout_seconds: float) -> None:
        self.pair = index
        self.deadline = time.monotonic() + timeout_seconds
        with contextlib.suppress(BrokenPipeError):  # it is dead: the end of its replies says so
            self.requests.write(json.dumps(pair).encode() + b"\n")
            self.requests.flush()

    def receive(self) -> bytes | None:
        """A whole reply, b"" for part of one, None at the end."""
        chunk = os.read(self.replies.fileno(), 4096)
        if not chunk:
            return None
        self.received += chunk
        if not self.received.endswith(b"\n"):
            return b""
        reply, self.received = self.received, b""
        return reply

    def stop(self) -> int:
        self.process.kill()
        with contextlib.suppress(BrokenPipeError):
            self.requests.close()
        self.replies.close()
        return self.process.wait()
