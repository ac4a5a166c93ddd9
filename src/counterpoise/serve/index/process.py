"""The process that writes indexes: `python -m counterpoise.serve.index.process CACHE`.

It is a process of its own so that reading gigabytes of rollouts does not hold up answers, and its
memory is given back when it ends. It runs at low priority: training comes first. The server sends a
line {"run": FOLDER, "roots": [...]} for each run that somebody looks at, and {"forget": FOLDER}
when nobody has for a while. The process ends when its input does, so it never outlives the server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from counterpoise.serve.index.writer import IndexWriter
from counterpoise.terminal import echo_message

PAUSE_SECONDS = 0.4  # between looks at runs that have nothing new
NICENESS = 10


def main() -> None:
    os.nice(NICENESS)
    commands: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
    threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
    run_loop(Path(sys.argv[1]), commands)


def _read_commands(commands: SimpleQueue[dict[str, Any] | None]) -> None:
    for line in sys.stdin:
        commands.put(json.loads(line))
    commands.put(None)


def run_loop(cache: Path, commands: SimpleQueue[dict[str, Any] | None]) -> None:
    """Index the runs that commands name until the command None."""
    writers: dict[str, IndexWriter] = {}
    faults: dict[str, str] = {}  # run -> its last fault, which is printed once
    has_more = False
    while True:
        try:
            command = commands.get(block=True, timeout=0 if has_more else PAUSE_SECONDS)
        except Empty:
            outcomes = [_work(run, writer, faults) for run, writer in writers.items()]
            has_more = any(outcomes)
            continue
        if command is None:
            break
        if "forget" in command:
            if writer := writers.pop(command["forget"], None):
                writer.close()
        elif command["run"] not in writers:
            roots = [Path(root) for root in command["roots"]]
            writers[command["run"]] = IndexWriter(Path(command["run"]), cache, roots)
            has_more = True
    for writer in writers.values():
        writer.close()


def _work(run: str, writer: IndexWriter, faults: dict[str, str]) -> bool:
    """One piece of work; a fault of one run must not end the index of the others.

    It is tried again: a full disk may have room later.
    """
    try:
        return writer.work()
    except Exception as fault:
        message = f"{run}: {type(fault).__name__}: {fault}"
        if faults.get(run) != message:
            faults[run] = message
            echo_message(message)
        time.sleep(PAUSE_SECONDS)
        return False


class IndexProcess:
    """The server's handle on the process; it is started when the first run is looked at."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self._process: subprocess.Popen[str] | None = None
        self._followed: dict[Path, list[Path]] = {}
        self._lock = threading.Lock()

    def follow(self, run_folder: Path, roots: list[Path]) -> None:
        with self._lock:
            is_running = self._process is not None and self._process.poll() is None
            if is_running and run_folder in self._followed:
                return
            self._followed[run_folder] = roots
            if is_running:
                self._send({"run": str(run_folder), "roots": [str(root) for root in roots]})
                return
            self._start()
            for folder, its_roots in self._followed.items():
                self._send({"run": str(folder), "roots": [str(root) for root in its_roots]})

    def forget(self, run_folder: Path) -> None:
        with self._lock:
            if self._followed.pop(run_folder, None) is not None:
                self._send({"forget": str(run_folder)})

    def close(self) -> None:
        with self._lock:
            if self._process and self._process.stdin:
                self._process.stdin.close()
                # On a busy machine a process of low priority takes its time; what it writes is
                # complete or absent, so it may be ended at any moment.
                try:
                    self._process.wait(timeout=2)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
                self._process = None

    def _start(self) -> None:
        command = [sys.executable, "-m", "counterpoise.serve.index.process", str(self.cache)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

    def _send(self, command: dict[str, Any]) -> None:
        if self._process and self._process.stdin:
            try:
                self._process.stdin.write(json.dumps(command) + "\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                pass  # it ended; the next `follow` starts another


if __name__ == "__main__":
    main()
