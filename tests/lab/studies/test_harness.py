"""The lab of the studies: products in TF32 while tokens are drawn on a GPU, and only then."""

from __future__ import annotations

import pytest
import torch

from counterpoise.lab.studies.harness import fast_sampling


@pytest.mark.parametrize(("device", "precision"), [("cuda", "high"), ("cpu", "highest")])
def test_precision_is_lowered_for_drawing_on_a_gpu_alone(device: str, precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with fast_sampling(torch.device(device)):
            assert torch.get_float32_matmul_precision() == precision
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)
