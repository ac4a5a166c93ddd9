"""Merge two attentions over different keys into one over both; `model/flash.py` has the formula."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _merge(
    out, lse, prompt_out, prompt_lse, joint_lse_out, heads, width,
    stride, stride_prompt, stride_joint, block_h: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """All heads of one response token."""
    n = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, block_h)
    d = tl.arange(0, block_d)[None]
    is_head = h < heads
    lse_here = tl.load(lse + h * stride + n, mask=is_head, other=0.0)
    lse_prompt = tl.load(prompt_lse + h * stride_prompt + n, mask=is_head, other=0.0)
    peak = tl.maximum(lse_here, lse_prompt)
    joint_lse = peak + tl.log(tl.exp(lse_here - peak) + tl.exp(lse_prompt - peak))
    tl.store(joint_lse_out + h * stride_joint + n, joint_lse, mask=is_head)
    inside = is_head[:, None] & (d < width)
    offset = n * heads * width + h[:, None] * width + d
    out_here = tl.load(out + offset, mask=inside, other=0.0).to(tl.float32)
    out_prompt = tl.load(prompt_out + offset, mask=inside, other=0.0).to(tl.float32)
    mixed = (
        out_here * tl.exp(lse_here - joint_lse)[:, None]
        + out_prompt * tl.exp(lse_prompt - joint_lse)[:, None]
    )
    tl.store(out + offset, mixed.to(out.dtype.element_ty), mask=inside)


def merge(out: Tensor, lse: Tensor, prompt_out: Tensor, prompt_lse: Tensor, into: Tensor) -> None:
    """Overwrite `out` [N, H, d] with the joint attention; the joint lse [H, N] goes into `into`.

    `into` must not be `lse` itself: a thread may read what another has already overwritten.
    """
    N, H, d = out.shape
    block_h, block_d = triton.next_power_of_2(H), triton.next_power_of_2(d)
    _merge[(N,)](
        out, lse, prompt_out, prompt_lse, into, H, d,
        lse.stride(0), prompt_lse.stride(0), into.stride(0),
        block_h=block_h, block_d=block_d,
        # With fewer than 64 elements two warps would load the same ones, and one warp might do so
        # after the other has overwritten them.
        num_warps=2 if block_h * block_d >= 64 else 1,
    )  # fmt: skip
