"""Decode attention: one new token of every row attends to its prefix and its earlier tokens.

One program handles a row and a key/value head. It stores the new key and value, then reads every
key and value of the row once for all query heads that share them, with an online softmax. A row
may also be cut into parts, each with a program of its own, whose softmaxes `_join_parts` joins: few
long rows would otherwise leave most of the GPU idle (`sample/decode_tile.py` chooses).
`sample/kv_slots.py` describes the memory layout and has the formula in torch.

Keys are read by blocks: those of the prefix, then those of the response. No block has keys of both,
or of two pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from counterpoise.sample.decode_tile import choose_parts, choose_tile

if TYPE_CHECKING:
    from counterpoise.sample.kv_slots import KeysAndValues, SlotAddresses


@triton.jit
def _attend_block(
    query, key_pointers, value_pointers, is_key, in_head, peak, total, mixed, scale,
    precision: tl.constexpr,
):  # fmt: skip
    """Add one block of keys and values to an online softmax: (new peak, total, mixed).

    With weights exp(score - peak), `total` is their sum and `mixed` the weighted sum of the values.
    """
    inside = is_key[:, None] & in_head[None]
    keys = tl.load(key_pointers, mask=inside, other=0.0)
    values = tl.load(value_pointers, mask=inside, other=0.0)
    scores = tl.dot(query, tl.trans(keys), input_precision=precision) * scale
    scores = tl.where(is_key[None], scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    weights = tl.exp(scores - new_peak[:, None])
    rescale = tl.exp(peak - new_peak)
    total = total * rescale + tl.sum(weights, 1)
    block_mixed = tl.dot(weights.to(values.dtype), values, input_precision=precision)
    return new_peak, total, mixed * rescale[:, None] + block_mixed


@triton.jit
def _keys_of_part(prefix_length, response_length, part, parts: tl.constexpr, block: tl.constexpr):
    """(first, end) of the prefix and (first, end) of the response: a share of all whole blocks."""
    if parts == 1:
        prefix_first, prefix_end = 0, prefix_length
        response_first, response_end = 0, response_length
    else:
        prefix_blocks = tl.cdiv(prefix_length, block)
        blocks_per_part = tl.cdiv(prefix_blocks + tl.cdiv(response_length, block), parts)
        first_block = part * blocks_per_part
        prefix_first = first_block * block
        prefix_end = tl.minimum((first_block + blocks_per_part) * block, prefix_length)
        response_first = tl.maximum(first_block - prefix_blocks, 0) * block
        response_end = (first_block + blocks_per_part - prefix_blocks) * block
        response_end = tl.minimum(response_end, response_length)
    return prefix_first, prefix_end, response_first, response_end


@triton.jit
def _decode(
    q, k, v, out, part_peaks, part_totals, prefix_k, prefix_v, response_k, response_v,
    rows, prefix_starts, prefix_lengths, positions, page_table, scale,
    stride_q, stride_k, stride_v, heads, kv_heads, new_tokens,
    page_tokens: tl.constexpr, parts: tl.constexpr, group: tl.constexpr, padded_group: tl.constexpr,
    width: tl.constexpr, padded_width: tl.constexpr, block: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """`out` [R, H, d]; with several parts [R, parts, H, d], not divided by the parts' totals.

    `page_tokens` is 0 without a page table: slot i has page i, of `new_tokens`.
    """
    r, kv_head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    slot = tl.load(rows + r)
    prefix_start, prefix_length = tl.load(prefix_starts + slot), tl.load(prefix_lengths + slot)
    t = tl.load(positions + r) - prefix_length  # tokens sampled before the current one
    prefix_first, prefix_end, response_first, response_end = _keys_of_part(
        prefix_length, t, part, parts, block
    )
    head, d = tl.arange(0, padded_group), tl.arange(0, padded_width)
    key_index = tl.arange(0, block)
    is_head, in_head = head < group, d < width
    query_offset = r * stride_q + (kv_head * group + head[:, None]) * width + d[None]
    query = tl.load(q + query_offset, mask=is_head[:, None] & in_head[None], other=0.0)
    new_k = tl.load(k + r * stride_k + kv_head * width + d, mask=in_head, other=0.0)
    new_v = tl.load(v + r * stride_v + kv_head * width + d, mask=in_head, other=0.0)
    page, t_in_page, head_size = slot, t, new_tokens * width
    if page_tokens > 0:
        row_pages = page_table + slot * (new_tokens // page_tokens)
        page, t_in_page = tl.load(row_pages + t // page_tokens).to(tl.int64), t % page_tokens
        head_size = page_tokens * width
    page_offset = (page * kv_heads + kv_head) * head_size
    stores_new = in_head & (part == 0)
    tl.store(response_k + page_offset + t_in_page * width + d, new_k, mask=stores_new)
    tl.store(response_v + page_offset + t_in_page * width + d, new_v, mask=stores_new)

    # The softmax of the first part starts from the token's own key, still in registers: the value
    # just stored need not be read back, and the running maximum is finite from the start.
    peak = tl.sum(query.to(tl.float32) * new_k.to(tl.float32)[None], 1) * scale
    total = tl.full([padded_group], 1.0, tl.float32)
    mixed = tl.zeros([padded_group, padded_width], tl.float32) + new_v.to(tl.float32)[None]
    if parts > 1:
        peak = tl.where(part == 0, peak, float("-inf"))
        total = tl.where(part == 0, total, 0.0)
        mixed = tl.where(part == 0, mixed, 0.0)
    for start in range(prefix_first, prefix_end, block):
        token = prefix_start + start + key_index[:, None]
        offset = token * kv_heads * width + kv_head * width + d[None]
        peak, total, mixed = _attend_block(
            query, prefix_k + offset, prefix_v + offset, start + key_index < prefix_end, in_head,
            peak, total, mixed, scale, precision,
        )  # fmt: skip
    if page_tokens > 0:
        has_keys = response_first < response_end
        next_page = tl.load(row_pages + response_first // page_tokens, mask=has_keys, other=0)
    for start in range(response_first, response_end, block):
        start_in_page = start
        if page_tokens > 0:
            # The page of the next block is looked up while this one is read.
            page_offset = (next_page.to(tl.int64) * kv_heads + kv_head) * head_size
            start_in_page = start % page_tokens
            next_start = start + block
            next_page = tl.load(
                row_pages + next_start // page_tokens, mask=next_start < response_end, other=0
            )
        offset = page_offset + (start_in_page + key_index[:, None]) * width + d[None]
        peak, total, mixed = _attend_block(
            query, response_k + offset, response_v + offset, start + key_index < response_end,
            in_head, peak, total, mixed, scale, precision,
        )  # fmt: skip
    head_index = (r * parts + part) * heads + kv_head * group + head
    if parts > 1:
        tl.store(part_peaks + head_index, peak, mask=is_head)
        tl.store(part_totals + head_index, total, mask=is_head)
    else:
        mixed = mixed / total[:, None]
    offset = head_index[:, None] * width + d[None]
    tl.store(out + offset, mixed.to(out.dtype.element_ty), mask=is_head[:, None] & in_head[None])


@triton.jit
def _join_parts(
    part_mixed, part_peaks, part_totals, out, heads,
    parts: tl.constexpr, width: tl.constexpr, padded_width: tl.constexpr,
):  # fmt: skip
    """Rescale the parts' softmaxes to a common maximum and add them up.

    There is one program for each row and query head.
    """
    r, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    part, d = tl.arange(0, parts), tl.arange(0, padded_width)
    in_head = d < width
    head_index = (r * parts + part) * heads + head
    peaks = tl.load(part_peaks + head_index)  # -inf of a part without keys
    weights = tl.exp(peaks - tl.max(peaks, 0))
    total = tl.sum(weights * tl.load(part_totals + head_index), 0)
    offset = head_index[:, None] * width + d[None]
    mixed = tl.load(part_mixed + offset, mask=in_head[None], other=0.0)
    result = tl.sum(weights[:, None] * mixed, 0) / total
    tl.store(out + (r * heads + head) * width + d, result.to(out.dtype.element_ty), mask=in_head)


def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    prefix: KeysAndValues,
    response: KeysAndValues,
    addresses: SlotAddresses,
) -> Tensor:
    """q [R, H, d], k and v [R, K, d] -> [R, H, d]; k and v are also stored in `response`."""
    R, H, d = q.shape
    K, new_tokens, page_tokens = k.shape[1], response[0].shape[2], 0
    tile = choose_tile(d, H // K)
    if addresses.page_table is not None:
        page_tokens, new_tokens = new_tokens, new_tokens * addresses.page_table.shape[1]
        tile = tile._replace(block=min(tile.block, page_tokens))
    parts = choose_parts(R * K, new_tokens)
    out = torch.empty(R, H, d, dtype=q.dtype, device=q.device)
    part_shape = (R, parts, H) if parts > 1 else (0,)
    part_peaks, part_totals = q.new_empty(2, *part_shape, dtype=torch.float32)
    part_mixed = q.new_empty(*part_shape, d, dtype=torch.float32) if parts > 1 else out
    padded_width = max(16, triton.next_power_of_2(d))
    _decode[(R, K, parts)](
        q, k, v, part_mixed, part_peaks, part_totals, *prefix, *response, *addresses, d**-0.5,
        q.stride(0), k.stride(0), v.stride(0), H, K, new_tokens, page_tokens=page_tokens,
        # tl.dot needs at least 16 rows and columns
        parts=parts, group=H // K, padded_group=max(16, triton.next_power_of_2(H // K)), width=d,
        padded_width=padded_width, block=tile.block,
        precision="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    if parts > 1:
        _join_parts[(R, H)](
            part_mixed, part_peaks, part_totals, out, H,
            parts=parts, width=d, padded_width=padded_width,
        )  # fmt: skip
    return out
