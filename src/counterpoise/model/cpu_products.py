"""Which library multiplies matrices of few rows on a CPU, as in decoding.

On ARM torch gives float32 products to oneDNN, which packs the weights of a linear layer anew in
every call. On a Neoverse N1, with 12 to 16 rows, the linear layers of the embedded model take twice
as long in oneDNN as in BLAS; with 48 rows they take 1.4 times as long. With hundreds of rows the
two are equal, and training stays with oneDNN.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch

PACKS_EVERY_CALL = platform.machine() == "aarch64"  # Linux on ARM; macOS has its own BLAS


@contextmanager
def products_of_few_rows(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Within it, float32 products on a CPU are left to BLAS where that is faster."""
    is_float32_on_cpu = device.type == "cpu" and dtype == torch.float32
    if not (is_float32_on_cpu and PACKS_EVERY_CALL and torch.backends.mkldnn.enabled):
        yield
        return
    # torch declares a descriptor without the type that it sets.
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = True  # type: ignore[assignment]
