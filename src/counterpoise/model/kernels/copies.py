"""Attention of altered copies of responses, computed from the first altered token on.

    q [M, H, d]    own k, v [n, K, d]    cached k, v of the originals [N, K, d]    ->  [M, H, d]

A copy shares its prompt and the beginning of the response (its prefix) with an original, whose keys
and values are cached (`credit/row_copies.py`). Its own tokens, from the first difference on, attend
to the prompt, to the prefix and to the past among themselves. In the last layer only some of them
are queries, so M <= n.

One pass with an online softmax; nothing is copied or padded. The H / K query heads that share a key
head are rows of one block: a copy has few tokens, and a block of few rows would waste most of a
matrix unit.
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

BLOCK_ROWS, BLOCK_KEYS = 64, 64  # query rows and keys of a block
LOG2_E = 1.4426950408889634  # scores are scaled by it, because exp2 is faster than exp


@dataclass(frozen=True, slots=True, eq=False)
class CopyBlocks:
    """Which rows of which copy each program computes."""

    blocks: Tensor  # int32 [B, 2]: a copy, and its first row in the block
    spans: Tensor  # int32 [C, 8]: (start, length) of queries, own keys, prompt, prefix


def make_copy_blocks(
    spans_C8: NDArray[np.integer], heads_per_key: int, device: torch.device
) -> CopyBlocks:
    """Split the query rows of every copy into blocks, one for each program.

    `heads_per_key` is the number of query heads per key head. A copy's queries are those of all its
    own tokens, or of the last few.
    """
    # A copy has `heads_per_key` rows for each query; `nth_B` counts the blocks of one copy.
    counts_C = -(-heads_per_key * spans_C8[:, 1] // BLOCK_ROWS)
    copy_B = np.repeat(np.arange(len(spans_C8)), counts_C)
    nth_B = np.arange(len(copy_B)) - np.repeat(np.cumsum(counts_C) - counts_C, counts_C)
    blocks = np.stack((copy_B, BLOCK_ROWS * nth_B), axis=1)
    return CopyBlocks(to_device(blocks, device, np.int32), to_device(spans_C8, device, np.int32))


@triton.jit
def _attend_span(
    acc, peak, total, query, scale, keys, values, stride_k, stride_v, start, length, last_m,
    d, width, block_n: tl.constexpr,
):  # fmt: skip
    """Continue an online softmax over one span of keys; row m sees keys up to `last_m`."""
    in_head = d[None] < width
    for block_start in range(0, length, block_n):
        key_index = block_start + tl.arange(0, block_n)
        rows = (start + key_index).to(tl.int64)[:, None]
        inside = (key_index < length)[:, None] & in_head
        k = tl.load(keys + rows * stride_k + d[None], mask=inside, other=0.0)
        v = tl.load(values + rows * stride_v + d[None], mask=inside, other=0.0)
        scores = tl.dot(query, tl.trans(k)) * scale
        visible = (key_index[None] < length) & (key_index[None] <= last_m[:, None])
        scores = tl.where(visible, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - new_peak[:, None])
        rescale = tl.exp2(peak - new_peak)
        total = total * rescale + tl.sum(weights, 1)
        acc = acc * rescale[:, None] + tl.dot(weights.to(v.dtype), v)
        peak = new_peak
    return acc, peak, total


@triton.jit
def _attend(
    q, k, v, cached_k, cached_v, out, blocks, spans, scale, stride_q, stride_k, stride_v,
    stride_cached_k, stride_cached_v, width, heads,
    heads_per_key: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
    block_d: tl.constexpr,
):  # fmt: skip
    """One block of query rows of one copy, for the query heads of one key head."""
    program, head = tl.program_id(0), tl.program_id(1)
    copy, first_row = tl.load(blocks + 2 * program), tl.load(blocks + 2 * program + 1)
    span = spans + 8 * copy
    # Row m of a copy is query m // heads_per_key, in the key head's query head m % heads_per_key.
    m = first_row + tl.arange(0, block_m)
    t, h = m // heads_per_key, head * heads_per_key + m % heads_per_key
    num_queries, num_own = tl.load(span + 1), tl.load(span + 3)
    d = tl.arange(0, block_d)
    query_rows = (tl.load(span) + t).to(tl.int64)[:, None]
    inside = (t < num_queries)[:, None] & (d[None] < width)
    query = tl.load(
        q + query_rows * stride_q + h[:, None] * width + d[None], mask=inside, other=0.0
    )
    peak = tl.full([block_m], float("-inf"), tl.float32)
    total = tl.zeros([block_m], tl.float32)
    acc = tl.zeros([block_m, block_d], tl.float32)
    no_limit = tl.full([block_m], 2147483647, tl.int32)
    head_offset = head * width
    # The prompt comes first: it is never empty, so the running maximum is finite from then on.
    acc, peak, total = _attend_span(
        acc, peak, total, query, scale, cached_k + head_offset, cached_v + head_offset,
        stride_cached_k, stride_cached_v,
        tl.load(span + 4), tl.load(span + 5), no_limit, d, width, block_n,
    )  # fmt: skip
    acc, peak, total = _attend_span(
        acc, peak, total, query, scale, cached_k + head_offset, cached_v + head_offset,
        stride_cached_k, stride_cached_v,
        tl.load(span + 6), tl.load(span + 7), no_limit, d, width, block_n,
    )  # fmt: skip
    acc, peak, total = _attend_span(
        acc, peak, total, query, scale, k + head_offset, v + head_offset, stride_k, stride_v,
        tl.load(span + 2), num_own, t + num_own - num_queries, d, width, block_n,
    )  # fmt: skip
    destination = out + (query_rows * heads + h[:, None]) * width + d[None]
    tl.store(destination, (acc / total[:, None]).to(out.dtype.element_ty), mask=inside)


def attend_copies(
    q: Tensor, k: Tensor, v: Tensor, cached_k: Tensor, cached_v: Tensor, layout: CopyBlocks
) -> Tensor:
    """q [M, H, d] of all copies -> [M, H, d]; shapes as in the module's docstring."""
    M, H, d = q.shape
    K = k.shape[1]
    out = q.new_empty(M, H, d)
    _attend[(len(layout.blocks), K)](
        q, k, v, cached_k, cached_v, out, layout.blocks, layout.spans, LOG2_E / d**0.5,
        q.stride(0), k.stride(0), v.stride(0), cached_k.stride(0), cached_v.stride(0), d, H,
        heads_per_key=H // K, block_m=BLOCK_ROWS, block_n=BLOCK_KEYS,
        block_d=max(16, triton.next_power_of_2(d)), num_warps=4, num_stages=2,
    )  # fmt: skip
    return out
