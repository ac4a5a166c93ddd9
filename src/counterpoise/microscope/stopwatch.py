"""Measures the seconds that some work takes, on a GPU by the GPU's own clock.

Work on a GPU is only queued when Python continues. Two events in its queue record how long it took,
including the time the GPU waited for Python; nothing blocks until the seconds are read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Adds up the seconds of several timed blocks.

    Example:
        watch = Stopwatch()
        with watch.running(policy.device):
            ...
        watch.seconds
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def running(self, device: torch.device) -> Iterator[None]:
        if device.type != "cuda":
            start_time = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - start_time
            return
        # Events are queued like kernels, so they time the GPU without making the CPU wait.
        start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start_event.record()
        yield
        end_event.record()
        self._events.append((start_event, end_event))

    @property
    def seconds(self) -> float:
        """Seconds of all blocks so far; waits for a GPU to finish them."""
        for start_event, end_event in self._events:
            end_event.synchronize()
            self._seconds += start_event.elapsed_time(end_event) / 1000
        self._events.clear()
        return self._seconds
