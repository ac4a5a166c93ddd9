"""The gated activation of the MLP: silu(a) * b, a and b side by side in one tensor.

With s = sigmoid(a):     da = g b s (1 + a (1 - s))        db = g a s
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from counterpoise.model.kernels import fused


def gate(joint: Tensor) -> Tensor:
    """[N, 2 I] -> [N, I]"""
    if fused(joint):
        from counterpoise.model.kernels import gate as kernel

        return kernel.forward(joint)
    a, b = joint.chunk(2, dim=-1)
    return F.silu(a) * b


def gate_backward(
    grad: Tensor, joint: Tensor, *, trained: bool = True
) -> tuple[Tensor, Tensor | None]:
    """(gradient of `joint`, gate(joint) once more for the weight after it: it need not be kept)"""
    if fused(joint):
        from counterpoise.model.kernels import gate as kernel

        return kernel.backward(grad, joint, trained=trained)
    a, b = joint.chunk(2, dim=-1)
    s = a.sigmoid()
    found = torch.cat((grad * b * s * (1 + a * (1 - s)), grad * a * s), dim=-1)
    return found, a * s * b if trained else None
