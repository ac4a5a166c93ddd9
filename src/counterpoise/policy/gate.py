"""The gated activation of the MLP: silu(a) * b, a and b side by side in one tensor.

With s = sigmoid(a):     da = g b s (1 + a (1 - s))        db = g a s
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from counterpoise.policy.kernels import fused


def gate(joint: Tensor) -> Tensor:
    """[N, 2 I] -> [N, I]"""
    if fused(joint):
        from counterpoise.policy.kernels import gate as kernel

        return kernel.forward(joint)
    a, b = joint.chunk(2, dim=-1)
    return F.silu(a) * b


def gate_backward(grad: Tensor, joint: Tensor) -> tuple[Tensor, Tensor]:
    """(gradient of `joint`, gate(joint) once more: it need not be kept)"""
    if fused(joint):
        from counterpoise.policy.kernels import gate as kernel

        return kernel.backward(grad, joint)
    a, b = joint.chunk(2, dim=-1)
    s = a.sigmoid()
    return torch.cat((grad * b * s * (1 + a * (1 - s)), grad * a * s), dim=-1), a * s * b
