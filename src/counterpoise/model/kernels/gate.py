"""silu(a) * b of one joint tensor in one pass, forward and backward: `model/layer_parts.py`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _forward(joint, out, width, block: tl.constexpr):
    n, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * block + tl.arange(0, block)
    inside = i < width
    a = tl.load(joint + n * 2 * width + i, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(joint + n * 2 * width + width + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + n * width + i, (a * tl.sigmoid(a) * b).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward(grad, joint, out, again, width, trained: tl.constexpr, block: tl.constexpr):
    n, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * block + tl.arange(0, block)
    inside = i < width
    a = tl.load(joint + n * 2 * width + i, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(joint + n * 2 * width + width + i, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + n * width + i, mask=inside, other=0.0).to(tl.float32)
    s = tl.sigmoid(a)
    da, db = g * b * s * (1 + a * (1 - s)), g * a * s
    tl.store(out + n * 2 * width + i, da.to(out.dtype.element_ty), mask=inside)
    tl.store(out + n * 2 * width + width + i, db.to(out.dtype.element_ty), mask=inside)
    if trained:
        tl.store(again + n * width + i, (a * s * b).to(out.dtype.element_ty), mask=inside)


def forward(joint: Tensor) -> Tensor:
    N, width = joint.shape[0], joint.shape[1] // 2
    out = joint.new_empty(N, width)
    if N:
        block = _block(width)
        _forward[(N, triton.cdiv(width, block))](joint, out, width, block=block)
    return out


def backward(grad: Tensor, joint: Tensor, *, weight_grads: bool) -> tuple[Tensor, Tensor | None]:
    N, width = grad.shape
    out, again = torch.empty_like(joint), torch.empty_like(grad if weight_grads else grad[:0])
    block = _block(width)
    _backward[(N, triton.cdiv(width, block))](
        grad, joint, out, again, width, trained=weight_grads, block=block
    )
    return out, again if weight_grads else None


def _block(width: int) -> int:
    return min(2048, triton.next_power_of_2(width))
