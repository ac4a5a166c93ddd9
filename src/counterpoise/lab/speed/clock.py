"""Time and memory of device work: warm up, synchronize, repeat, take the median.

seconds   host clock between two synchronizations, so queued kernels count
spread    (slowest - fastest) / median of the repeats: differences below it are noise
peak      most memory beyond what was held before: allocated (tensors) and reserved (tensors,
          the allocator's gaps, and the pools of CUDA graphs, which only this one sees)
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
    """The repeats of one measurement.

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
    """Seconds of one call, everything it queued included."""
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - start


def time_repeats(
    work: Callable[[], object], device: torch.device, repeats: int, warm_up: int = 1
) -> Timing:
    """The first calls load, compile and capture: they do not count."""
    for _ in range(warm_up):
        work()
    return Timing(tuple(time_once(work, device) for _ in range(repeats)))


def time_in_turns(
    works: Mapping[str, Callable[[], object]],
    device: torch.device,
    repeats: int,
    warm_up: int = 1,
) -> dict[str, Timing]:
    """Like `repeat` for several at once, in turns: what the machine does meanwhile hits all."""
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
    """Median seconds of one short kernel by device events; the works differ in their inputs, so
    that no call finds its own in the cache."""
    for work in works:
        work()
    if device.type != "cuda":
        return statistics.median(time_once(work, device) for _ in range(rounds) for work in works)
    spent = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for work in works:
            work()
        end.record()
        torch.cuda.synchronize(device)
        spent.append(start.elapsed_time(end) / 1e3 / len(works))
    return statistics.median(spent)


class PeakMemory:
    """with Peak(device) as peak: ...        bytes beyond what was held at its start.

    On the CPU both stay 0: a process cannot tell its parts apart.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.allocated = self.reserved = 0
        self._held = (0, 0)

    def start(self) -> None:
        if self.device.type == "cuda":
            release(self.device)
            self._held = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
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
    """Give back what no one refers to any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


class Deadline:
    """How long a run may still take; None never passes."""

    def __init__(self, minutes: float | None) -> None:
        self.minutes = minutes
        self.start = time.perf_counter()

    @property
    def spent(self) -> float:
        return time.perf_counter() - self.start

    @property
    def passed(self) -> bool:
        return self.minutes is not None and self.spent > 60 * self.minutes
