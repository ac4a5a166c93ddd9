"""Normalise and rotate the queries and keys of a token in one pass; see `model/layer_parts.py`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 1056  # of a backward pass that also sums the gradients of the norm weights


@triton.jit
def _forward(
    qkv, out, cos, sin, wq, wk, all_heads, out_heads, query_heads, rotated_heads, epsilon,
    half: tl.constexpr, normed: tl.constexpr, block_h: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """Rotate the halves (a, b) of every head by the angle of its position.

    `*_heads` count the heads of `qkv` and of `out`, those of queries, and those that are rotated.
    """
    n = tl.program_id(0).to(tl.int64)
    h, d = tl.arange(0, block_h)[:, None], tl.arange(0, block_d)[None]
    inside = (h < out_heads) & (d < half)
    source = qkv + (n * all_heads + h) * 2 * half + d
    a = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
    if normed:
        scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * half) + epsilon)[:, None]
        a *= scale * _weight(wq, wk, h, d, query_heads, half)
        b *= scale * _weight(wq + half, wk + half, h, d, query_heads, half)
    c, s = _angles(cos, sin, n, d, half)
    c = tl.where(h < rotated_heads, c, 1.0)  # values are not rotated
    s = tl.where(h < rotated_heads, s, 0.0)
    destination = out + (n * out_heads + h) * 2 * half + d
    tl.store(destination, (a * c - b * s).to(out.dtype.element_ty), mask=inside)
    tl.store(destination + half, (b * c + a * s).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _weight(wq, wk, h, d, queries, half: tl.constexpr):
    """The norm weight of each head: of queries or of keys."""
    weight_q = tl.load(wq + d, mask=d < half, other=0.0).to(tl.float32)
    weight_k = tl.load(wk + d, mask=d < half, other=0.0).to(tl.float32)
    return tl.where(h < queries, weight_q, weight_k)


@triton.jit
def _angles(cos, sin, n, d, half: tl.constexpr):
    """cos and sin of a token; the table's second half repeats the first."""
    c = tl.load(cos + n * 2 * half + d, mask=d < half, other=0.0).to(tl.float32)
    s = tl.load(sin + n * 2 * half + d, mask=d < half, other=0.0).to(tl.float32)
    return c, s


@triton.jit
def _backward(
    dq, dk, dv, qkv, out, cos, sin, wq, wk, partial, N, queries, keys, epsilon,
    half: tl.constexpr, normed: tl.constexpr, block_h: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """Each program takes every num_programs-th token and sums its share of the norms' gradients."""
    h, d = tl.arange(0, block_h)[:, None], tl.arange(0, block_d)[None]
    in_half = d < half
    is_query, is_key = (h < queries) & in_half, (h >= queries) & (h < queries + keys) & in_half
    is_value = (h >= queries + keys) & (h < queries + 2 * keys) & in_half
    is_head = is_query | is_key | is_value
    sums_a = tl.zeros([block_h, block_d], tl.float32)
    sums_b = tl.zeros([block_h, block_d], tl.float32)
    for n in range(tl.program_id(0).to(tl.int64), N, tl.num_programs(0)):
        offset_q = (n * queries + h) * 2 * half + d
        offset_k = (n * keys + h - queries) * 2 * half + d
        offset_v = (n * keys + h - queries - keys) * 2 * half + d
        grad_a = tl.load(dq + offset_q, mask=is_query, other=0.0) + tl.load(
            dk + offset_k, mask=is_key, other=0.0
        )
        grad_b = tl.load(dq + offset_q + half, mask=is_query, other=0.0) + tl.load(
            dk + offset_k + half, mask=is_key, other=0.0
        )
        grad_a, grad_b = grad_a.to(tl.float32), grad_b.to(tl.float32)
        c, s = _angles(cos, sin, n, d, half)
        a, b = grad_a * c + grad_b * s, grad_b * c - grad_a * s  # rotated back
        offset = (n * (queries + 2 * keys) + h) * 2 * half + d
        if normed:  # the backward pass of the RMS norm, over both halves of a head
            x = tl.load(qkv + offset, mask=is_query | is_key, other=0.0).to(tl.float32)
            y = tl.load(qkv + offset + half, mask=is_query | is_key, other=0.0).to(tl.float32)
            scale = tl.rsqrt((tl.sum(x * x, 1) + tl.sum(y * y, 1)) / (2 * half) + epsilon)[:, None]
            x, y = x * scale, y * scale
            sums_a += a * x
            sums_b += b * y
            a *= _weight(wq, wk, h, d, queries, half)
            b *= _weight(wq + half, wk + half, h, d, queries, half)
            projection = ((tl.sum(a * x, 1) + tl.sum(b * y, 1)) / (2 * half))[:, None]
            a, b = scale * (a - x * projection), scale * (b - y * projection)
        a += tl.load(dv + offset_v, mask=is_value, other=0.0).to(tl.float32)
        b += tl.load(dv + offset_v + half, mask=is_value, other=0.0).to(tl.float32)
        tl.store(out + offset, a.to(out.dtype.element_ty), mask=is_head)
        tl.store(out + offset + half, b.to(out.dtype.element_ty), mask=is_head)
    if normed:
        destination = partial + tl.program_id(0) * 4 * half + d
        tl.store(destination, tl.sum(tl.where(h < queries, sums_a, 0.0), 0)[None], mask=in_half)
        tl.store(
            destination + half, tl.sum(tl.where(h < queries, sums_b, 0.0), 0)[None], mask=in_half
        )
        tl.store(
            destination + 2 * half,
            tl.sum(tl.where(h >= queries, sums_a, 0.0), 0)[None],
            mask=in_half,
        )
        tl.store(
            destination + 3 * half,
            tl.sum(tl.where(h >= queries, sums_b, 0.0), 0)[None],
            mask=in_half,
        )


def forward(
    qkv: Tensor, norms: tuple[Tensor, Tensor] | None, cos: Tensor, sin: Tensor,
    H: int, K: int, epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(q, k, v), queries and keys normalised and rotated.

    If there are norms, v is a view of `qkv`, which the backward pass needs anyway. Otherwise v is
    copied, so that `qkv` can be freed.
    """
    N, heads, d = qkv.shape
    out = qkv.new_empty(N, H + K if norms else heads, d)
    wq, wk = norms or (cos, cos)  # without norms the kernel never reads the weights
    if N:
        _forward[(N,)](
            qkv, out, cos, sin, wq, wk, heads, out.shape[1], H, H + K, epsilon,
            half=d // 2, normed=norms is not None,
            block_h=triton.next_power_of_2(out.shape[1]), block_d=triton.next_power_of_2(d // 2),
        )  # fmt: skip
    return out[:, :H], out[:, H : H + K], (qkv if norms else out)[:, H + K :]


def backward(
    dq: Tensor, dk: Tensor, dv: Tensor, qkv: Tensor, norms: tuple[Tensor, Tensor] | None,
    cos: Tensor, sin: Tensor, epsilon: float,
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:  # fmt: skip
    """(gradient of qkv [N, H + 2K, d], gradients of the norm weights)"""
    N, H, d = dq.shape
    K = dk.shape[1]
    out = dq.new_empty(N, H + 2 * K, d)
    wq, wk = norms or (cos, cos)
    programs = min(PROGRAMS, N) if norms else N
    partial = dq.new_empty(programs if norms else 1, 2, d, dtype=torch.float32)
    _backward[(programs,)](
        dq, dk, dv, qkv, out, cos, sin, wq, wk, partial, N, H, K, epsilon,
        half=d // 2, normed=norms is not None, block_h=triton.next_power_of_2(H + 2 * K),
        block_d=triton.next_power_of_2(d // 2),
    )  # fmt: skip
    if not norms:
        return out, None
    grad_norm_q, grad_norm_k = partial.sum(dim=0).to(wq.dtype)
    return out, (grad_norm_q, grad_norm_k)
