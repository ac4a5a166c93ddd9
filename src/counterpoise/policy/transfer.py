"""Arrays to the device without waiting.

A plain copy to a GPU waits for all work queued before it, and then the GPU waits for the host to
queue more. A copy from pinned memory is queued like everything else.
"""

from __future__ import annotations

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
