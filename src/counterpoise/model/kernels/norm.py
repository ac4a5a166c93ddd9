"""RMS norm in one pass, forward and backward; `model/layer_parts.py` has the formulas."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 528  # of a backward pass: four for each multiprocessor of an H100 or H200


@triton.jit
def _forward(x, w, out, D, epsilon, block: tl.constexpr):
    """The norm of one token."""
    token, d = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    inside = d < D
    row = tl.load(x + token * D + d, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(row * row, 0) / D + epsilon)
    weight = tl.load(w + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * D + d, (row * scale * weight).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    grad, x, w, residual_grad, out, normed, partial, N, D, epsilon,
    weight_grads: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Each program takes every num_programs-th row and sums its share of the weight's gradient.

    The shares are added up in a fixed order afterwards, so the result is repeatable.
    """
    d = tl.arange(0, block)
    inside = d < D
    weight = tl.load(w + d, mask=inside, other=0.0).to(tl.float32)
    weight_grad = tl.zeros([block], tl.float32)
    for n in range(tl.program_id(0).to(tl.int64), N, tl.num_programs(0)):
        offset = n * D + d
        row = tl.load(x + offset, mask=inside, other=0.0).to(tl.float32)
        grad_row = tl.load(grad + offset, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(row * row, 0) / D + epsilon)
        unit = row * scale
        weighted_grad = grad_row * weight
        dx = scale * (weighted_grad - unit * (tl.sum(weighted_grad * unit, 0) / D))
        dx += tl.load(residual_grad + offset, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + offset, dx.to(out.dtype.element_ty), mask=inside)
        if weight_grads:
            tl.store(normed + offset, (unit * weight).to(out.dtype.element_ty), mask=inside)
            weight_grad += grad_row * unit
    if weight_grads:
        tl.store(partial + tl.program_id(0) * D + d, weight_grad, mask=inside)


def forward(x: Tensor, w: Tensor, epsilon: float) -> Tensor:
    """x [N, D] -> h [N, D]"""
    N, D = x.shape
    out = torch.empty_like(x)
    if N:
        _forward[(N,)](x, w, out, D, epsilon, block=triton.next_power_of_2(D), num_warps=_warps(D))
    return out


def backward(
    grad: Tensor, x: Tensor, w: Tensor, epsilon: float, residual_grad: Tensor, *, weight_grads: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(residual_grad + dx [N, D], h [N, D], dw [D]); without `weight_grads` only the first."""
    N, D = x.shape
    programs = min(PROGRAMS, N) if weight_grads else N
    grad_x, normed = torch.empty_like(x), torch.empty_like(x if weight_grads else x[:0])
    partial = torch.empty(programs if weight_grads else 0, D, dtype=torch.float32, device=x.device)
    _backward[(programs,)](
        grad, x, w, residual_grad, grad_x, normed, partial, N, D, epsilon,
        weight_grads=weight_grads, block=triton.next_power_of_2(D), num_warps=_warps(D),
    )  # fmt: skip
    if not weight_grads:
        return grad_x, None, None
    return grad_x, normed, partial.sum(dim=0).to(w.dtype)


def _warps(D: int) -> int:
    return 4 if D <= 1024 else 8
