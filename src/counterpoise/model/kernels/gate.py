"""The gate silu(a) * b in one pass, a and b side by side; see `model/layer_parts.py`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _forward(joint, out, width, block: tl.constexpr):
    """One block of columns of one row: out = silu(a) * b."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * block + tl.arange(0, block)
    inside = column < width
    a = tl.load(joint + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(joint + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(
        out + row * width + column, (a * tl.sigmoid(a) * b).to(out.dtype.element_ty), mask=inside
    )


@triton.jit
def _backward(grad, joint, out, gated, width, weight_grads: tl.constexpr, block: tl.constexpr):
    """One block of columns of one row: da and db into `out`, the gate again into `gated`."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * block + tl.arange(0, block)
    inside = column < width
    a = tl.load(joint + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(joint + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + row * width + column, mask=inside, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(a)
    da, db = g * b * sigmoid * (1 + a * (1 - sigmoid)), g * a * sigmoid
    tl.store(out + row * 2 * width + column, da.to(out.dtype.element_ty), mask=inside)
    tl.store(out + row * 2 * width + width + column, db.to(out.dtype.element_ty), mask=inside)
    if weight_grads:
        tl.store(
            gated + row * width + column, (a * sigmoid * b).to(out.dtype.element_ty), mask=inside
        )


def forward(joint: Tensor) -> Tensor:
    """joint [N, 2 I] -> silu(a) * b [N, I]"""
    N, width = joint.shape[0], joint.shape[1] // 2
    out = joint.new_empty(N, width)
    if N:
        block = _block(width)
        _forward[(N, triton.cdiv(width, block))](joint, out, width, block=block)
    return out


def backward(grad: Tensor, joint: Tensor, *, weight_grads: bool) -> tuple[Tensor, Tensor | None]:
    """(gradient of `joint` [N, 2 I], silu(a) * b [N, I] or None)

    The second is for the gradient of the weight after the gate: `weight_grads` asks for it.
    """
    N, width = grad.shape
    grad_joint, gated = (
        torch.empty_like(joint),
        torch.empty_like(grad if weight_grads else grad[:0]),
    )
    block = _block(width)
    _backward[(N, triton.cdiv(width, block))](
        grad, joint, grad_joint, gated, width, weight_grads=weight_grads, block=block
    )
    return grad_joint, gated if weight_grads else None


def _block(width: int) -> int:
    return min(2048, triton.next_power_of_2(width))
