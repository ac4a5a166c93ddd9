"""One decoded token of every row against its prefix and its own past: `sample/kv_slots.py`.

One program for a row and a key/value head. It stores the new key and value, then reads every key
and value of the row once for all query heads that share them, the softmax carried along.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _look(
    query, keys_at, values_at, here, wide, most, total, mixed, scale, precision: tl.constexpr
):
    """Take one block of keys and values into a running softmax."""
    inside = here[:, None] & wide[None]
    keys = tl.load(keys_at, mask=inside, other=0.0)
    values = tl.load(values_at, mask=inside, other=0.0)
    scores = tl.dot(query, tl.trans(keys), input_precision=precision) * scale
    scores = tl.where(here[None], scores, float("-inf"))
    larger = tl.maximum(most, tl.max(scores, 1))
    weights = tl.exp(scores - larger[:, None])
    shift = tl.exp(most - larger)
    total = total * shift + tl.sum(weights, 1)
    seen = tl.dot(weights.to(values.dtype), values, input_precision=precision)
    return larger, total, mixed * shift[:, None] + seen


@triton.jit
def _decode(
    q, k, v, out, prefix_k, prefix_v, own_k, own_v, slots, firsts, lengths, step, scale,
    stride_q, stride_k, stride_v, heads, kv_heads, room,
    share: tl.constexpr, padded: tl.constexpr, width: tl.constexpr, padded_width: tl.constexpr,
    block: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    r, kv = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + r)
    first, length = tl.load(firsts + slot), tl.load(lengths + slot)
    t = tl.load(step)  # own tokens before this one
    g, d, n = tl.arange(0, padded), tl.arange(0, padded_width), tl.arange(0, block)
    mine, wide = g < share, d < width
    query_at = r * stride_q + (kv * share + g[:, None]) * width + d[None]
    query = tl.load(q + query_at, mask=mine[:, None] & wide[None], other=0.0)
    new_k = tl.load(k + r * stride_k + kv * width + d, mask=wide, other=0.0)
    new_v = tl.load(v + r * stride_v + kv * width + d, mask=wide, other=0.0)
    own = (slot * kv_heads + kv) * room * width
    tl.store(own_k + own + t * width + d, new_k, mask=wide)
    tl.store(own_v + own + t * width + d, new_v, mask=wide)

    most = tl.sum(query.to(tl.float32) * new_k.to(tl.float32)[None], 1) * scale
    total = tl.full([padded], 1.0, tl.float32)
    mixed = tl.zeros([padded, padded_width], tl.float32) + new_v.to(tl.float32)[None]
    for start in range(0, length, block):
        at = (first + start + n[:, None]) * kv_heads * width + kv * width + d[None]
        most, total, mixed = _look(
            query, prefix_k + at, prefix_v + at, start + n < length, wide,
            most, total, mixed, scale, precision,
        )  # fmt: skip
    for start in range(0, t, block):
        at = own + (start + n[:, None]) * width + d[None]
        most, total, mixed = _look(
            query, own_k + at, own_v + at, start + n < t, wide,
            most, total, mixed, scale, precision,
        )  # fmt: skip
    result = mixed / total[:, None]
    at = (r * heads + kv * share + g[:, None]) * width + d[None]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=mine[:, None] & wide[None])


def decode_attention(
    q: Tensor, k: Tensor, v: Tensor, prefix: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor],
    slots: Tensor, firsts: Tensor, lengths: Tensor, step: Tensor,
) -> Tensor:  # fmt: skip
    """q [R, H, d], k and v [R, K, d] -> [R, H, d]"""
    R, H, d = q.shape
    K = k.shape[1]
    out = torch.empty(R, H, d, dtype=q.dtype, device=q.device)
    _decode[(R, K)](
        q, k, v, out, *prefix, *own, slots, firsts, lengths, step, d**-0.5,
        q.stride(0), k.stride(0), v.stride(0), H, K, own[0].shape[2],
        share=H // K, padded=max(16, triton.next_power_of_2(H // K)), width=d,
        padded_width=max(16, triton.next_power_of_2(d)), block=64,
        precision="ieee" if q.dtype == torch.float32 else "tf32", num_warps=4, num_stages=2,
    )  # fmt: skip
    return out
