"""Triton kernels of the policy. Each has its formula in plain torch, and a test against it.

Only half precision on a CUDA device runs them: float32 is for measurements, whose forward-mode
derivatives and exactness want torch's own operations, and on a CPU there is no Triton.
"""

from __future__ import annotations

import torch
from torch import Tensor


def uses_kernels(x: Tensor) -> bool:
    """Whether kernels run in place of torch's operations. They have no derivative of their own."""
    return not torch.is_grad_enabled() and is_half_on_gpu(x)


def is_half_on_gpu(x: Tensor) -> bool:
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16)
