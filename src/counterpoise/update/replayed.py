"""Work on tensors of one shape, captured as a CUDA graph and replayed on other values.

A graph repeats kernels at the addresses they were captured with. So what changes from one use to
the next is copied to where the captured work reads it, and what it finds lies where it wrote it:
whoever wants to keep that copies it before the next use. All graphs share one pool of memory, which
is as large as the largest of them needs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

MOST = 64  # graphs; a run meets far fewer sizes

Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    given: Tensors
    found: Any
    graph: Any  # torch.cuda.CUDAGraph


class Replays:
    """
    Example:
        replays = Replays(device)
        found = replays("double", {"x": x}, lambda given: 2 * given["x"])    # captures, and runs
        found = replays("double", {"x": y}, lambda given: 2 * given["x"])    # replays
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._entries: dict[Hashable, Entry] = {}
        self._pool: Any = None

    def __len__(self) -> int:
        return len(self._entries)

    def __call__(
        self, key: Hashable, values: Mapping[str, np.ndarray], work: Callable[[Tensors], Any]
    ) -> Any:
        """What `work` finds; it is not called where the key has been met."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._capture(values, work)
            self._entries[key] = entry
        else:
            for name, array in values.items():
                entry.given[name].copy_(torch.from_numpy(array).pin_memory(), non_blocking=True)
        entry.graph.replay()
        return entry.found

    def forget(self) -> None:
        """All that was captured, and its memory."""
        self._entries.clear()
        self._pool = None

    def _capture(self, values: Mapping[str, np.ndarray], work: Callable[[Tensors], Any]) -> Entry:
        if len(self._entries) >= MOST:
            self.forget()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        given = {name: torch.from_numpy(array).to(self.device) for name, array in values.items()}
        graph = torch.cuda.CUDAGraph()
        # relaxed: a shape may be the first to need some variant of a kernel, which is loaded then
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="relaxed"):
            found = work(given)
        return Entry(given, found, graph)
