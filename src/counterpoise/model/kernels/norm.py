"""Root mean square norm in one pass, forward and backward: `model/layer_parts.py` has the
formulas."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 528  # that sum weight gradients: four for each multiprocessor of an H100 or H200


@triton.jit
def _forward(x, w, out, D, epsilon, block: tl.constexpr):
    n, d = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    inside = d < D
    row = tl.load(x + n * D + d, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(row * row, 0) / D + epsilon)
    weight = tl.load(w + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + n * D + d, (row * scale * weight).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    grad, x, w, beside, out, normed, partial, N, D, epsilon,
    trained: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Rows are dealt out to the programs; each sums its share of the weight's gradient."""
    d = tl.arange(0, block)
    inside = d < D
    weight = tl.load(w + d, mask=inside, other=0.0).to(tl.float32)
    summed = tl.zeros([block], tl.float32)
    for n in range(tl.program_id(0).to(tl.int64), N, tl.num_programs(0)):
        at = n * D + d
        row = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(row * row, 0) / D + epsilon)
        unit = row * scale
        pulled = g * weight
        dx = scale * (pulled - unit * (tl.sum(pulled * unit, 0) / D))
        dx += tl.load(beside + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + at, dx.to(out.dtype.element_ty), mask=inside)
        if trained:
            tl.store(normed + at, (unit * weight).to(out.dtype.element_ty), mask=inside)
            summed += g * unit
    if trained:
        tl.store(partial + tl.program_id(0) * D + d, summed, mask=inside)


def forward(x: Tensor, w: Tensor, epsilon: float) -> Tensor:
    N, D = x.shape
    out = torch.empty_like(x)
    if N:
        _forward[(N,)](x, w, out, D, epsilon, block=triton.next_power_of_2(D), num_warps=_warps(D))
    return out


def backward(
    grad: Tensor, x: Tensor, w: Tensor, epsilon: float, residual_grad: Tensor, *, weight_grads: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    N, D = x.shape
    programs = min(PROGRAMS, N) if weight_grads else N
    out, normed = torch.empty_like(x), torch.empty_like(x if weight_grads else x[:0])
    partial = torch.empty(programs if weight_grads else 0, D, dtype=torch.float32, device=x.device)
    _backward[(programs,)](
        grad, x, w, residual_grad, out, normed, partial, N, D, epsilon, trained=weight_grads,
        block=triton.next_power_of_2(D), num_warps=_warps(D),
    )  # fmt: skip
    return (out, normed, partial.sum(dim=0).to(w.dtype)) if weight_grads else (out, None, None)


def _warps(D: int) -> int:
    return 4 if D <= 1024 else 8
