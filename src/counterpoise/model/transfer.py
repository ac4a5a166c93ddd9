"""Copy arrays to the device and back without making host and GPU wait for each other.

A plain copy to a GPU waits for all work queued before it, and then the GPU waits for the host to
queue more. A copy from or into pinned memory is queued like all other work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], device: torch.device, dtype: Any = None) -> Tensor:
    """Queue a copy of `array` to the device, converted to a numpy `dtype` if one is given."""
    tensor = torch.from_numpy(np.ascontiguousarray(array, dtype=dtype))
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensor: Tensor) -> Callable[[], NDArray[Any]]:
    """Queue a copy to the host; the returned function waits for it (not for later work)."""
    if tensor.device.type != "cuda":
        return tensor.numpy
    pinned_copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    pinned_copy.copy_(tensor, non_blocking=True)
    copy_finished = torch.cuda.Event()
    copy_finished.record()

    def wait_for_copy() -> NDArray[Any]:
        copy_finished.synchronize()
        return pinned_copy.numpy()

    return wait_for_copy
