"""Root mean square norm: h = w * x / sqrt(mean(x^2) + epsilon), over the last axis.

With u = x / sqrt(mean(x^2) + epsilon) and p = w * dh the backward pass is

    dx = (p - u mean(p u)) / sqrt(mean(x^2) + epsilon)          dw = sum_n dh u

It is given another gradient to add to dx (the residual stream's) and returns h once more, so that
h need not be kept between the passes. Where no weight is trained, neither h nor dw is wanted.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from counterpoise.model.kernels import fused


def rms_norm(x: Tensor, w: Tensor, epsilon: float) -> Tensor:
    if fused(x) and x.dim() == 2:
        from counterpoise.model.kernels import norm

        return norm.forward(x, w, epsilon)
    return F.rms_norm(x, (x.shape[-1],), w, epsilon)


def rms_norm_backward(
    grad: Tensor, x: Tensor, w: Tensor, epsilon: float, beside: Tensor, *, trained: bool = True
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(beside + dx [N, D], h [N, D], dw [D])"""
    if fused(x):
        from counterpoise.model.kernels import norm

        return norm.backward(grad, x, w, epsilon, beside, trained=trained)
    scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + epsilon)
    unit, pulled = x * scale, grad * w
    dx = scale * (pulled - unit * (pulled * unit).mean(dim=-1, keepdim=True))
    if not trained:
        return beside + dx, None, None
    return beside + dx, unit * w, (grad * unit).sum(dim=0)
