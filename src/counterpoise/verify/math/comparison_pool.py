"""Compare pairs of answers in worker processes, with a hard time limit for each pair.

Each worker (comparison_worker.py) handles one pair at a time. A pair that exceeds the limit, or
whose worker dies twice, is lost; the others are not affected. A worker that dies is replaced, and
its pair tried once more, because something else may have killed it. The limit counts CPU time where
the system tells it (Linux), so that rewards do not depend on what else the machine does; a worker
that only waits gets WALL_SECONDS_PER_CPU_SECOND times the limit. Processes start when they are
first needed (about a second each), are reused from call to call, and end with the pool or with the
process that owns it. POSIX only, because it waits on pipes.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Literal

from counterpoise.errors import PoiseError
from counterpoise.verify.worker_process import (
    START_ATTEMPTS,
    START_LIMIT_SECONDS,
    WALL_SECONDS_PER_CPU_SECOND,
    start_worker,
    stop_worker,
)

WORKER_MODULE = "counterpoise.verify.math.comparison_worker"
CHECK_SECONDS = 0.05  # shortest time between two looks at a worker's CPU clock


class ComparisonWorker:
    """A worker process as its owner sees it: start, send a pair, receive a reply, stop.

    The worker reports that it is ready before it gets its first pair.
    """

    def __init__(self, compare: str, timeout_seconds: float) -> None:
        self.process = start_worker(
            WORKER_MODULE, compare, str(timeout_seconds), stderr=subprocess.DEVNULL
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests, self.replies = self.process.stdin, self.process.stdout
        self.ready = False
        self.pair_index: int | None = None  # index of the pair being compared; None: idle
        # When to look at its CPU clock next; until it is ready, when to give up its start.
        self.next_check = time.monotonic() + START_LIMIT_SECONDS
        self.hard_deadline = self.next_check
        self.cpu_start: float | None = None
        self.reply_buffer = b""

    def send(self, index: int, pair: tuple[str, str], timeout_seconds: float) -> None:
        self.pair_index = index
        self.next_check = time.monotonic() + timeout_seconds
        self.hard_deadline = time.monotonic() + WALL_SECONDS_PER_CPU_SECOND * timeout_seconds
        self.cpu_start = cpu_seconds(self.process.pid)
        with contextlib.suppress(BrokenPipeError):  # it died: receive() will return None
            self.requests.write(json.dumps(pair).encode() + b"\n")
            self.requests.flush()

    def allow_more_time(self, timeout_seconds: float) -> bool:
        """Give the worker more time if it has not used `timeout_seconds` of CPU time yet."""
        used_now = cpu_seconds(self.process.pid)
        if self.pair_index is None or used_now is None or self.cpu_start is None:
            return False
        now, remaining = time.monotonic(), timeout_seconds - (used_now - self.cpu_start)
        if remaining <= 0 or now >= self.hard_deadline:
            return False
        self.next_check = min(self.hard_deadline, now + max(remaining, CHECK_SECONDS))
        return True

    def receive(self) -> bytes | None:
        """A complete reply, b"" if more is to come, or None if the worker has exited."""
        chunk = os.read(self.replies.fileno(), 4096)
        if not chunk:
            return None
        self.reply_buffer += chunk
        if not self.reply_buffer.endswith(b"\n"):
            return b""
        reply, self.reply_buffer = self.reply_buffer, b""
        return reply

    def stop(self) -> int:
        return stop_worker(self.process)


Outcome = Literal["equal", "different", "timeout", "crash"]


class ComparisonPool:
    """Compares pairs in at most `workers` processes.

    Example:
        compare = "counterpoise.verify.math.equivalence:equivalent"
        ComparisonPool(compare, 5.0, 2).run([("1+1", "2")]) == ["equal"]
    """

    def __init__(self, compare: str, timeout_seconds: float, workers: int) -> None:
        if workers < 1 or timeout_seconds <= 0:
            raise PoiseError(
                f"verify.workers={workers} and verify.timeout_seconds={timeout_seconds} cannot "
                "verify anything: use at least 1 worker and more than 0 seconds"
            )
        self.compare = compare
        self.timeout_seconds = timeout_seconds
        self.max_workers = workers
        self._workers: list[ComparisonWorker] = []
        self._failed_starts = 0  # in a row
        self._selector = selectors.DefaultSelector()
        self._finalizer = weakref.finalize(self, _stop_all, self._workers)

    def run(self, pairs: Sequence[tuple[str, str]]) -> list[Outcome]:
        """The outcome of each pair, in order."""
        outcomes: dict[int, Outcome] = {}
        waiting = deque(range(len(pairs)))
        retried: set[int] = set()
        self._collect(outcomes, wait=False)  # removes workers that died between calls
        try:
            while len(outcomes) < len(pairs):
                while len(self._workers) < min(self.max_workers, len(pairs) - len(outcomes)):
                    self._start()
                for worker in self._workers:
                    if waiting and worker.ready and worker.pair_index is None:
                        index = waiting.popleft()
                        worker.send(index, pairs[index], self.timeout_seconds)
                self._collect(outcomes, wait=True)
                for index in [i for i, outcome in outcomes.items() if outcome == "crash"]:
                    if index not in retried:
                        retried.add(index)
                        del outcomes[index]
                        waiting.append(index)
        finally:
            # After an interrupt some workers are still busy. Their late replies would be taken
            # for replies to the next call, so these workers are stopped.
            for worker in list(self._workers):
                if worker.pair_index is not None:
                    self._remove(worker)
        return [outcomes[index] for index in range(len(pairs))]

    def close(self) -> None:
        """End all processes. A pool can be used again after this: it starts new ones."""
        for worker in list(self._workers):
            self._remove(worker)

    def _start(self) -> None:
        worker = ComparisonWorker(self.compare, self.timeout_seconds)
        self._workers.append(worker)
        self._selector.register(worker.replies, selectors.EVENT_READ, worker)

    def _remove(self, worker: ComparisonWorker) -> int:
        self._selector.unregister(worker.replies)
        self._workers.remove(worker)
        return worker.stop()

    def _collect(self, outcomes: dict[int, Outcome], wait: bool) -> None:
        """Handle the replies that have arrived; with `wait`, block until one comes or is late."""
        busy = [
            busy_worker
            for busy_worker in self._workers
            if busy_worker.pair_index is not None or not busy_worker.ready
        ]
        seconds_to_check = (
            min((busy_worker.next_check for busy_worker in busy), default=0.0) - time.monotonic()
        )
        for selector_key, _ in self._selector.select(max(0.0, seconds_to_check) if wait else 0):
            self._handle_reply(selector_key.data, outcomes)
        current_time = time.monotonic()
        for worker in [
            busy_worker
            for busy_worker in self._workers
            if busy_worker in busy and busy_worker.next_check < current_time
        ]:
            if worker.pair_index is None and worker.ready:
                continue  # its reply arrived in time, just now
            if worker.allow_more_time(self.timeout_seconds):
                continue
            self._remove(worker)
            if worker.pair_index is None:
                self._count_failed_start(f"took over {START_LIMIT_SECONDS:.0f} s to start")
                continue
            outcomes[worker.pair_index] = "timeout"

    def _count_failed_start(self, reason: str) -> None:
        """Something may have killed it; if it happens again and again, it cannot start."""
        self._failed_starts += 1
        if self._failed_starts >= START_ATTEMPTS:
            self._failed_starts = 0
            raise PoiseError(_start_failure(reason))

    def _handle_reply(self, worker: ComparisonWorker, outcomes: dict[int, Outcome]) -> None:
        reply = worker.receive()
        if reply == b"":
            return
        if reply is None:
            exit_code = self._remove(worker)
            if worker.pair_index is not None:
                outcomes[worker.pair_index] = "crash"
            elif not worker.ready:
                self._count_failed_start(f"exited with code {exit_code}")
            return
        message = json.loads(reply)
        if worker.pair_index is not None:
            outcomes[worker.pair_index] = "equal" if message else "different"
            worker.pair_index = None
        elif "ready" in message:
            worker.ready, self._failed_starts = True, 0
        else:
            self._remove(worker)
            raise PoiseError(_start_failure(message["failed"]))


def cpu_seconds(pid: int) -> float | None:
    """The CPU time that a process has used; None where the system does not tell."""
    if sys.platform != "linux":
        return None
    # Linux numbers the CPU clock of a process like this; clock_getcpuclockid(3) returns it.
    try:
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return None


def _start_failure(reason: str) -> str:
    return (
        f"a verifier worker cannot start: {reason}. `python -m {WORKER_MODULE} "
        "counterpoise.verify.math.equivalence:equivalent 5` shows why; is math-verify installed?"
    )


def _stop_all(workers: list[ComparisonWorker]) -> None:
    for worker in workers:
        worker.stop()
