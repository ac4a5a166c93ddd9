"""Sums in a fixed order: equal work on equal GPUs gives equal gradients, bit by bit.

Flash attention and scattered additions otherwise add up in whatever order threads arrive. On a CPU
nothing changes. torch's switch is on for the gradient alone: it refuses some operations that
measurements need, and nothing else in a step depends on order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def repeatable(enabled: bool = True) -> Iterator[None]:
    if not enabled or not torch.cuda.is_available():
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch insists on it
    settings: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled()
    filling = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = False  # only helps to find faults
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        settings.fill_uninitialized_memory = filling
