"""Two attentions over different keys as one over both: `model/flash.py` has the formula."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _merge(
    out, lse, beside, lse_beside, joined_out, heads, width, stride, stride_beside, stride_joined,
    block_h: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, block_h)
    d = tl.arange(0, block_d)[None]
    here = h < heads
    a = tl.load(lse + h * stride + n, mask=here, other=0.0)
    b = tl.load(lse_beside + h * stride_beside + n, mask=here, other=0.0)
    larger = tl.maximum(a, b)
    joined = larger + tl.log(tl.exp(a - larger) + tl.exp(b - larger))
    tl.store(joined_out + h * stride_joined + n, joined, mask=here)
    inside = here[:, None] & (d < width)
    at = n * heads * width + h[:, None] * width + d
    x = tl.load(out + at, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(beside + at, mask=inside, other=0.0).to(tl.float32)
    mixed = x * tl.exp(a - joined)[:, None] + y * tl.exp(b - joined)[:, None]
    tl.store(out + at, mixed.to(out.dtype.element_ty), mask=inside)


def merge(out: Tensor, lse: Tensor, beside: Tensor, lse_beside: Tensor, into: Tensor) -> None:
    """`out` [N, H, d] becomes that of both attentions; their lse [H, N] goes into `into`.

    Not into `lse` itself: a thread may read what its neighbour has already written.
    """
    N, H, d = out.shape
    block_h, block_d = triton.next_power_of_2(H), triton.next_power_of_2(d)
    _merge[(N,)](
        out, lse, beside, lse_beside, into, H, d,
        lse.stride(0), lse_beside.stride(0), into.stride(0),
        block_h=block_h, block_d=block_d,
        num_warps=2 if block_h * block_d >= 64 else 1,  # no element of `out` is read by two warps
    )  # fmt: skip
