"""Where kernels are tested: on a GPU, or with TRITON_INTERPRET=1 in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

if torch.cuda.is_available():
    DEVICE = "cuda"
elif os.environ.get("TRITON_INTERPRET") == "1":
    DEVICE = "cpu"
    pytest.importorskip("triton")
else:
    pytest.skip(
        "kernels need a GPU, or TRITON_INTERPRET=1 with triton installed", allow_module_level=True
    )
