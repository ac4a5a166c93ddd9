"""Triton kernels of the model. Each has its formula in plain torch, and a test that compares them.

They run only in half precision on a CUDA device: float32 is for measurements, which need the
forward-mode derivatives and the accuracy of torch's own operations, and a CPU has no Triton.
"""

from __future__ import annotations

import torch
from torch import Tensor


def uses_kernels(x: Tensor) -> bool:
    """Whether kernels replace torch's operations; never under autograd, which cannot see them."""
    return not torch.is_grad_enabled() and is_half_on_gpu(x)


def is_half_on_gpu(x: Tensor) -> bool:
    """Whether a tensor is in half precision on a CUDA device."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16)
