"""Sums in a fixed order: equal work on equal GPUs gives equal gradients, bit for bit.

Flash attention and scattered additions otherwise add up in whatever order threads arrive. On a CPU
nothing changes. torch's deterministic mode is on only while the gradient is computed, because it
refuses some operations that measurements need; the microscope's sums have a fixed order anyway, but
for its own gradients, which are computed within this context too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def repeatable(enabled: bool = True) -> Iterator[None]:
    """Within this context torch uses deterministic algorithms, if `enabled` and on a GPU."""
    if not enabled or not torch.cuda.is_available():
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch requires it
    torch_settings: Any = torch.utils.deterministic
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    filled_memory = torch_settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch_settings.fill_uninitialized_memory = False  # a debugging aid that costs time
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_deterministic, warn_only=only_warned)
        torch_settings.fill_uninitialized_memory = filled_memory
