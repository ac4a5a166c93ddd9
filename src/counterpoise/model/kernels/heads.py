"""Queries and keys of one token, normed and turned in one pass: `model/layer_parts.py`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 1056  # of a backward pass that sums weight gradients


@triton.jit
def _forward(
    qkv, out, cos, sin, wq, wk, all_heads, kept, queries, turned, epsilon,
    half: tl.constexpr, normed: tl.constexpr, block_h: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """The halves (a, b) of every head are coordinates of a plane that the position turns."""
    n = tl.program_id(0).to(tl.int64)
    h, d = tl.arange(0, block_h)[:, None], tl.arange(0, block_d)[None]
    inside = (h < kept) & (d < half)
    at = qkv + (n * all_heads + h) * 2 * half + d
    a = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(at + half, mask=inside, other=0.0).to(tl.float32)
    if normed:
        scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * half) + epsilon)[:, None]
        a *= scale * _weight(wq, wk, h, d, queries, half)
        b *= scale * _weight(wq + half, wk + half, h, d, queries, half)
    c, s = _angles(cos, sin, n, d, half)
    c, s = tl.where(h < turned, c, 1.0), tl.where(h < turned, s, 0.0)  # values stay as they are
    to = out + (n * kept + h) * 2 * half + d
    tl.store(to, (a * c - b * s).to(out.dtype.element_ty), mask=inside)
    tl.store(to + half, (b * c + a * s).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _weight(wq, wk, h, d, queries, half: tl.constexpr):
    of_q = tl.load(wq + d, mask=d < half, other=0.0).to(tl.float32)
    of_k = tl.load(wk + d, mask=d < half, other=0.0).to(tl.float32)
    return tl.where(h < queries, of_q, of_k)


@triton.jit
def _angles(cos, sin, n, d, half: tl.constexpr):
    """The table repeats its first half."""
    c = tl.load(cos + n * 2 * half + d, mask=d < half, other=0.0).to(tl.float32)
    s = tl.load(sin + n * 2 * half + d, mask=d < half, other=0.0).to(tl.float32)
    return c, s


@triton.jit
def _backward(
    dq, dk, dv, qkv, out, cos, sin, wq, wk, partial, N, queries, keys, epsilon,
    half: tl.constexpr, normed: tl.constexpr, block_h: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """Tokens are dealt out to the programs; each sums its share of the norms' gradients."""
    h, d = tl.arange(0, block_h)[:, None], tl.arange(0, block_d)[None]
    width = d < half
    of_q, of_k = (h < queries) & width, (h >= queries) & (h < queries + keys) & width
    of_v = (h >= queries + keys) & (h < queries + 2 * keys) & width
    every = of_q | of_k | of_v
    sums_a = tl.zeros([block_h, block_d], tl.float32)
    sums_b = tl.zeros([block_h, block_d], tl.float32)
    for n in range(tl.program_id(0).to(tl.int64), N, tl.num_programs(0)):
        at_q = (n * queries + h) * 2 * half + d
        at_k = (n * keys + h - queries) * 2 * half + d
        at_v = (n * keys + h - queries - keys) * 2 * half + d
        ga = tl.load(dq + at_q, mask=of_q, other=0.0) + tl.load(dk + at_k, mask=of_k, other=0.0)
        gb = tl.load(dq + at_q + half, mask=of_q, other=0.0) + tl.load(
            dk + at_k + half, mask=of_k, other=0.0
        )
        ga, gb = ga.to(tl.float32), gb.to(tl.float32)
        c, s = _angles(cos, sin, n, d, half)
        a, b = ga * c + gb * s, gb * c - ga * s  # turned back
        at = (n * (queries + 2 * keys) + h) * 2 * half + d
        if normed:
            x = tl.load(qkv + at, mask=of_q | of_k, other=0.0).to(tl.float32)
            y = tl.load(qkv + at + half, mask=of_q | of_k, other=0.0).to(tl.float32)
            scale = tl.rsqrt((tl.sum(x * x, 1) + tl.sum(y * y, 1)) / (2 * half) + epsilon)[:, None]
            x, y = x * scale, y * scale
            sums_a += a * x
            sums_b += b * y
            a *= _weight(wq, wk, h, d, queries, half)
            b *= _weight(wq + half, wk + half, h, d, queries, half)
            along = ((tl.sum(a * x, 1) + tl.sum(b * y, 1)) / (2 * half))[:, None]
            a, b = scale * (a - x * along), scale * (b - y * along)
        a += tl.load(dv + at_v, mask=of_v, other=0.0).to(tl.float32)
        b += tl.load(dv + at_v + half, mask=of_v, other=0.0).to(tl.float32)
        tl.store(out + at, a.to(out.dtype.element_ty), mask=every)
        tl.store(out + at + half, b.to(out.dtype.element_ty), mask=every)
    if normed:
        to = partial + tl.program_id(0) * 4 * half + d
        tl.store(to, tl.sum(tl.where(h < queries, sums_a, 0.0), 0)[None], mask=width)
        tl.store(to + half, tl.sum(tl.where(h < queries, sums_b, 0.0), 0)[None], mask=width)
        tl.store(to + 2 * half, tl.sum(tl.where(h >= queries, sums_a, 0.0), 0)[None], mask=width)
        tl.store(to + 3 * half, tl.sum(tl.where(h >= queries, sums_b, 0.0), 0)[None], mask=width)


def forward(
    qkv: Tensor, norms: tuple[Tensor, Tensor] | None, cos: Tensor, sin: Tensor,
    H: int, K: int, epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(q, k, v). With norms v stays in `qkv`, which the backward pass needs to see again; without
    them it is copied, and `qkv` can go."""
    N, heads, d = qkv.shape
    out = qkv.new_empty(N, H + K if norms else heads, d)
    wq, wk = norms or (cos, cos)
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
    of_q, of_k = partial.sum(dim=0).to(wq.dtype)
    return out, (of_q, of_k)
