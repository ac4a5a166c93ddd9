"""Arrays to the device without waiting, and back when they are asked for.

A plain copy to a GPU waits for all work queued before it, and then the GPU waits for the host to
queue more. A copy from pinned memory is queued like everything else, and so is one into it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], device: torch.device, dtype: Any = None) -> Tensor:
    """`array`, or its values as a numpy `dtype`."""
    tensor = torch.from_numpy(np.ascontiguousarray(array, dtype=dtype))
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensor: Tensor) -> Callable[[], NDArray[Any]]:
    """Queues the copy. To call what is returned is to wait for it, and for nothing queued later."""
    if tensor.device.type != "cuda":
        return tensor.numpy
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    there = torch.cuda.Event()
    there.record()

    def waited() -> NDArray[Any]:
        there.synchronize()
        return host.numpy()

    return waited
