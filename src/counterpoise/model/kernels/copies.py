"""Attention of copies of a response: a token sees its prompt, what the copy keeps, its own past.

    q [n, H, d]    own k, v [n, K, d]    the originals' k, v [N, K, d]    ->  [n, H, d]

One pass with the softmax carried along; nothing is copied or padded. The H / K query heads that
share a key head are rows of one block: a copy has few tokens, and a block of few rows wastes most
of a matrix unit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.model.transfer import to_device

BLOCK_ROWS, BLOCK_KEYS = 64, 64  # of a block
LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True, eq=False)
class CopyBlocks:
    """Which rows each program takes."""

    blocks: Tensor  # int32 [B, 2]: a copy, and its first row in the block
    spans: Tensor  # int32 [C, 8]: (start, length) of queries, own keys, prompt, what is kept


def make_copy_blocks(spans_C8: NDArray[np.integer], group: int, device: torch.device) -> CopyBlocks:
    """`group`: query heads of a key head. The last query of a copy is at its last own key."""
    counts_C = -(-group * spans_C8[:, 1] // BLOCK_ROWS)
    copy_B = np.repeat(np.arange(len(spans_C8)), counts_C)
    nth_B = np.arange(len(copy_B)) - np.repeat(np.cumsum(counts_C) - counts_C, counts_C)
    blocks = np.stack((copy_B, BLOCK_ROWS * nth_B), axis=1)
    return CopyBlocks(to_device(blocks, device, np.int32), to_device(spans_C8, device, np.int32))


@triton.jit
def _over(
    acc, most, total, x, scale, keys, values, stride_k, stride_v, start, length, last_m, d, width,
    block_n: tl.constexpr,
):  # fmt: skip
    """The softmax goes on over one stretch of keys; row m sees them up to `last_m`."""
    inside = d[None] < width
    for first in range(0, length, block_n):
        j = first + tl.arange(0, block_n)
        at = (start + j).to(tl.int64)[:, None]
        here = (j < length)[:, None] & inside
        k = tl.load(keys + at * stride_k + d[None], mask=here, other=0.0)
        v = tl.load(values + at * stride_v + d[None], mask=here, other=0.0)
        scores = tl.dot(x, tl.trans(k)) * scale
        seen = (j[None] < length) & (j[None] <= last_m[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        larger = tl.maximum(most, tl.max(scores, 1))
        p = tl.exp2(scores - larger[:, None])
        shift = tl.exp2(most - larger)
        total = total * shift + tl.sum(p, 1)
        acc = acc * shift[:, None] + tl.dot(p.to(v.dtype), v)
        most = larger
    return acc, most, total


@triton.jit
def _attend(
    q, k, v, kept_k, kept_v, out, blocks, spans, scale, stride_q, stride_k, stride_v,
    stride_kept_k, stride_kept_v, width, heads,
    group: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    b, head = tl.program_id(0), tl.program_id(1)
    copy, first = tl.load(blocks + 2 * b), tl.load(blocks + 2 * b + 1)
    of = spans + 8 * copy
    m = first + tl.arange(0, block_m)
    t, h = m // group, head * group + m % group
    queries, own = tl.load(of + 1), tl.load(of + 3)
    d = tl.arange(0, block_d)
    at = (tl.load(of) + t).to(tl.int64)[:, None]
    here = (t < queries)[:, None] & (d[None] < width)
    x = tl.load(q + at * stride_q + h[:, None] * width + d[None], mask=here, other=0.0)
    most = tl.full([block_m], float("-inf"), tl.float32)
    total = tl.zeros([block_m], tl.float32)
    acc = tl.zeros([block_m, block_d], tl.float32)
    all_m = tl.full([block_m], 2147483647, tl.int32)
    shift = head * width
    acc, most, total = _over(
        acc, most, total, x, scale, kept_k + shift, kept_v + shift, stride_kept_k, stride_kept_v,
        tl.load(of + 4), tl.load(of + 5), all_m, d, width, block_n,
    )  # fmt: skip
    acc, most, total = _over(
        acc, most, total, x, scale, kept_k + shift, kept_v + shift, stride_kept_k, stride_kept_v,
        tl.load(of + 6), tl.load(of + 7), all_m, d, width, block_n,
    )  # fmt: skip
    acc, most, total = _over(
        acc, most, total, x, scale, k + shift, v + shift, stride_k, stride_v,
        tl.load(of + 2), own, t + own - queries, d, width, block_n,
    )  # fmt: skip
    to = out + (at * heads + h[:, None]) * width + d[None]
    tl.store(to, (acc / total[:, None]).to(out.dtype.element_ty), mask=here)


def attend_copies(
    q: Tensor, k: Tensor, v: Tensor, kept_k: Tensor, kept_v: Tensor, at: CopyBlocks
) -> Tensor:
    n, H, d = q.shape
    K = k.shape[1]
    out = q.new_empty(n, H, d)
    _attend[(len(at.blocks), K)](
        q, k, v, kept_k, kept_v, out, at.blocks, at.spans, LOG2_E / d**0.5,
        q.stride(0), k.stride(0), v.stride(0), kept_k.stride(0), kept_v.stride(0), d, H,
        group=H // K, block_m=BLOCK_ROWS, block_n=BLOCK_KEYS, block_d=max(16, triton.next_power_of_2(d)),
        num_warps=4, num_stages=2,
    )  # fmt: skip
    return out
