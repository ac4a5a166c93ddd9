"""Measure time and memory of work on a device: warm up, synchronize, repeat, take the median.

seconds   host clock between two synchronizations, so queued kernels count
spread    (slowest - fastest) / median of the repeats: differences below it are noise
peak      largest memory beyond what was held before: allocated (tensors) and reserved (tensors,
          the allocator's gaps, and the pools of CUDA graphs, which appear only here)
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch


@dataclass(frozen=True, slots=True)
class Timing:
    """The seconds of all repeats of one measurement.

    Example:
        Timing((0.31, 0.30, 0.32)).median == 0.31
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        return (max(self.seconds) - min(self.seconds)) / self.median

    def data(self) -> dict[str, Any]:
        return {"median": self.median, "spread": self.spread, "seconds": list(self.seconds)}


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_once(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, including everything it queued on the device."""
    synchronize(device)
    start_time = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - start_time


def time_in_turns(
    works: Mapping[str, Callable[[], object]],
    device: torch.device,
    repeats: int,
    warm_up: int = 1,
) -> dict[str, Timing]:
    """Time several calls in alternation."""
    # In turns, because whatever else the machine does then slows all of them alike. The first calls
    # load libraries, compile kernels and capture graphs: they do not count.
    for work in works.values():
        for _ in range(warm_up):
            work()
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            seconds[name].append(time_once(work, device))
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def device_seconds(
    works: Sequence[Callable[[], object]], device: torch.device, rounds: int
) -> float:
    """Median seconds of one short kernel, measured by device events."""
    # Callers pass several calls with different inputs, so that none finds its input in the cache.
    for work in works:
        work()
    if device.type != "cuda":
        return statistics.median(time_once(work, device) for _ in range(rounds) for work in works)
    durations = []
    for _ in range(rounds):
        start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start_event.record()
        # One pair of events around all calls: events themselves take a few microseconds.
        for work in works:
            work()
        end_event.record()
        torch.cuda.synchronize(device)
        durations.append(start_event.elapsed_time(end_event) / 1e3 / len(works))
    return statistics.median(durations)


class PeakMemory:
    """The largest number of bytes, beyond what was held before, while a block runs.

    On the CPU both numbers stay 0: memory cannot be attributed to part of a process.

    Example:
        with PeakMemory(device) as peak:
            ...
        peak.reserved
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.allocated = self.reserved = 0
        self._held = (0, 0)

    def start(self, loaded_bytes: int = 0) -> None:
        """Begin; `loaded_bytes` are held already and count as part of the work: its weights."""
        if self.device.type == "cuda":
            release(self.device)  # cached blocks would hide what this work reserves
            allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
            self._held = allocated - loaded_bytes, reserved - loaded_bytes
            torch.cuda.reset_peak_memory_stats(self.device)

    def read(self) -> None:
        if self.device.type == "cuda":
            self.allocated = torch.cuda.max_memory_allocated() - self._held[0]
            self.reserved = torch.cuda.max_memory_reserved() - self._held[1]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.read()

    def data(self) -> dict[str, float]:
        return {"allocated_gb": self.allocated / 1e9, "reserved_gb": self.reserved / 1e9}


def release(device: torch.device) -> None:
    """Collect garbage, and return cached memory to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


class Deadline:
    """A time limit in minutes; None never passes."""

    def __init__(self, minutes: float | None) -> None:
        self.minutes = minutes
        self.start = time.perf_counter()

    @property
    def spent(self) -> float:
        return time.perf_counter() - self.start

    @property
    def passed(self) -> bool:
        return self.minutes is not None and self.spent > 60 * self.minutes
