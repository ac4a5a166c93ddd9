"""Matrix products of a decoding step with what comes before and after them in the same kernel.

    heads_product        qkv = W norm(x) + b; heads of q and k are normalised (Qwen3) and rotated
    gated_product        silu(W_g norm(y)) * (W_u norm(y))
    add_product          x = x + W o + b, in place

A decoding step has few rows, so its small kernels take as long as its products. Two facts let one
kernel do the work of three:

    norm(x) = s * (w * x),  s = 1 / sqrt(mean(x^2) + epsilon)      W norm(x) = s * (W (w * x))

A program reads the whole of x's rows for its product anyway, sums their squares on the way, and
multiplies by s at the end. And a program computes both halves of a head, or gate and up of the same
columns, side by side, so rotation and gate need nothing from other programs.

Sums are float32, and w * x is rounded as norm(x) would be: in bfloat16 the result is as accurate as
that of the separate kernels, but not the same bit for bit. (In float16, w * x could overflow.)

With `chained` they follow each other without a gap (`chain.py`).

Names: R rows, D hidden size, E numbers of all heads, I width of the MLP.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from counterpoise.model.layer_parts import HeadNorms
from counterpoise.sample.kernels.chain import launch_options, wait_for_kernel_before
from counterpoise.sample.product_tile import ProductTile, choose_product_tile

Biases = tuple[Tensor, Tensor, Tensor] | None  # of queries, keys and values: Qwen2 has them


@triton.jit
def _two_products(
    x, norm_weight, weight_a, weight_b, row, num_rows, column, in_columns, D, epsilon,
    rows: tl.constexpr, columns: tl.constexpr, block: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """norm(x) times two sets of columns of W: `weight_a` and `weight_b` point at their first ones.

    Returns float32 [rows, columns] twice.
    """
    in_rows = row < num_rows
    product_a = tl.zeros([rows, columns], tl.float32)
    product_b = tl.zeros([rows, columns], tl.float32)
    squares = tl.zeros([rows], tl.float32)
    for start in range(0, D, block):
        i = start + tl.arange(0, block)
        inside = i < D
        part = tl.load(
            x + row[:, None].to(tl.int64) * D + i[None],
            mask=in_rows[:, None] & inside[None],
            other=0.0,
        ).to(tl.float32)
        squares += tl.sum(part * part, 1)
        scaled = part * tl.load(norm_weight + i, mask=inside, other=0.0).to(tl.float32)[None]
        scaled = scaled.to(x.dtype.element_ty)
        offset = column[None].to(tl.int64) * D + i[:, None]
        mask = inside[:, None] & in_columns[None]
        a = tl.load(weight_a + offset, mask=mask, other=0.0)
        b = tl.load(weight_b + offset, mask=mask, other=0.0)
        product_a = tl.dot(scaled, a, product_a, input_precision=precision)
        product_b = tl.dot(scaled, b, product_b, input_precision=precision)
    scale = tl.rsqrt(squares / D + epsilon)[:, None]
    return product_a * scale, product_b * scale


@triton.jit
def _heads(
    x, norm_weight, weight, bias_q, bias_k, bias_v, wq, wk, cos, sin, positions, out,
    num_rows, D, query_heads, kv_heads, epsilon,
    half: tl.constexpr, padded_half: tl.constexpr, biased: tl.constexpr, normed: tl.constexpr,
    rows: tl.constexpr, block: tl.constexpr, precision: tl.constexpr, chained: tl.constexpr,
):  # fmt: skip
    """One head of a block of rows; heads are those of queries, then keys, then values."""
    wait_for_kernel_before(chained)
    head = tl.program_id(1)
    row, d = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, padded_half)
    in_rows, in_half = row < num_rows, d < half
    first_column = head.to(tl.int64) * 2 * half
    a, b = _two_products(
        x, norm_weight, weight + first_column * D, weight + (first_column + half) * D,
        row, num_rows, d, in_half, D, epsilon, rows, padded_half, block, precision,
    )  # fmt: skip
    is_query, is_value = head < query_heads, head >= query_heads + kv_heads
    if biased:
        # The three biases are tensors of their own: exactly one of the masks holds.
        of_key = (head - query_heads) * 2 * half + d
        of_value = (head - query_heads - kv_heads) * 2 * half + d
        is_key = in_half & (head >= query_heads) & (head < query_heads + kv_heads)
        for_query, for_value = in_half & is_query, in_half & is_value
        bias_a = tl.load(bias_q + head * 2 * half + d, mask=for_query, other=0.0)
        bias_a += tl.load(bias_k + of_key, mask=is_key, other=0.0)
        bias_a += tl.load(bias_v + of_value, mask=for_value, other=0.0)
        bias_b = tl.load(bias_q + head * 2 * half + half + d, mask=for_query, other=0.0)
        bias_b += tl.load(bias_k + of_key + half, mask=is_key, other=0.0)
        bias_b += tl.load(bias_v + of_value + half, mask=for_value, other=0.0)
        a += bias_a.to(tl.float32)[None]
        b += bias_b.to(tl.float32)[None]
    if normed:
        scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * half) + epsilon)[:, None]
        # Values are not normalised: their scale and weight are 1.
        scale = tl.where(is_value, 1.0, scale)
        weight_a = tl.load(wq + d, mask=in_half & is_query, other=0.0)
        weight_a += tl.load(wk + d, mask=in_half & (head >= query_heads), other=0.0)
        weight_b = tl.load(wq + half + d, mask=in_half & is_query, other=0.0)
        weight_b += tl.load(wk + half + d, mask=in_half & (head >= query_heads), other=0.0)
        a *= scale * tl.where(is_value, 1.0, weight_a.to(tl.float32))[None]
        b *= scale * tl.where(is_value, 1.0, weight_b.to(tl.float32))[None]
    position = tl.load(positions + row, mask=in_rows, other=0).to(tl.int64)
    angle = position[:, None] * 2 * half + d[None]
    rotates = in_rows[:, None] & in_half[None] & (head < query_heads + kv_heads)
    c = tl.load(cos + angle, mask=rotates, other=1.0).to(tl.float32)
    s = tl.load(sin + angle, mask=rotates, other=0.0).to(tl.float32)
    inside = in_rows[:, None] & in_half[None]
    target = out + row[:, None].to(tl.int64) * (query_heads + 2 * kv_heads) * 2 * half
    target += first_column + d[None]
    tl.store(target, (a * c - b * s).to(out.dtype.element_ty), mask=inside)
    tl.store(target + half, (b * c + a * s).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gated(
    x, norm_weight, weight, out, num_rows, D, width, epsilon,
    rows: tl.constexpr, columns: tl.constexpr, block: tl.constexpr, precision: tl.constexpr,
    chained: tl.constexpr,
):  # fmt: skip
    """A block of columns of a block of rows; W has the gate's `width` outputs, then those of up."""
    wait_for_kernel_before(chained)
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    a, b = _two_products(
        x, norm_weight, weight, weight + width.to(tl.int64) * D,
        row, num_rows, column, column < width, D, epsilon, rows, columns, block, precision,
    )  # fmt: skip
    inside = (row < num_rows)[:, None] & (column < width)[None]
    target = out + row[:, None].to(tl.int64) * width + column[None]
    tl.store(target, (a * tl.sigmoid(a) * b).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _add_product(
    x, inputs, weight, bias, num_rows, D, E,
    biased: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, block: tl.constexpr,
    precision: tl.constexpr, chained: tl.constexpr,
):  # fmt: skip
    """A block of columns of a block of rows of x, which no other program reads or writes."""
    wait_for_kernel_before(chained)
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    in_rows, in_columns = row < num_rows, column < D
    inside = in_rows[:, None] & in_columns[None]
    target = x + row[:, None].to(tl.int64) * D + column[None]
    total = tl.load(target, mask=inside, other=0.0).to(tl.float32)
    if biased:
        total += tl.load(bias + column, mask=in_columns, other=0.0).to(tl.float32)[None]
    for start in range(0, E, block):
        i = start + tl.arange(0, block)
        in_block = i < E
        a = tl.load(
            inputs + row[:, None].to(tl.int64) * E + i[None],
            mask=in_rows[:, None] & in_block[None],
            other=0.0,
        )
        b = tl.load(
            weight + column[None].to(tl.int64) * E + i[:, None],
            mask=in_block[:, None] & in_columns[None],
            other=0.0,
        )
        total = tl.dot(a, b, total, input_precision=precision)
    tl.store(target, total.to(x.dtype.element_ty), mask=inside)


def heads_product(
    x: Tensor,
    norm_weight: Tensor,
    weight: Tensor,
    biases: Biases,
    head_norms: HeadNorms,
    *,
    rotary_table: tuple[Tensor, Tensor],
    positions: Tensor,
    heads: int,
    kv_heads: int,
    epsilon: float,
    chained: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """x [R, D], weight [(H + 2K) d, D] -> q [R, H, d], k and v [R, K, d]

    `rotary_table`: cos and sin [L, d] of all positions; `positions` [R] are those of the rows.
    """
    R, D = x.shape
    all_heads = heads + 2 * kv_heads
    half = len(weight) // all_heads // 2
    out = x.new_empty(R, all_heads, 2 * half)
    tile = choose_product_tile(R, head_dim=2 * half)
    _heads[(triton.cdiv(R, tile.rows), all_heads)](
        # Without biases or norms the kernel does not read what stands in their place.
        x, norm_weight, weight, *(biases or 3 * (weight,)), *(head_norms or 2 * (weight,)),
        *rotary_table, positions, out, R, D, heads, kv_heads, epsilon,
        half=half, padded_half=max(16, triton.next_power_of_2(half)), biased=biases is not None,
        normed=head_norms is not None, **_launch_options(tile, x, chained),
    )  # fmt: skip
    return out[:, :heads], out[:, heads : heads + kv_heads], out[:, heads + kv_heads :]


def gated_product(
    x: Tensor, norm_weight: Tensor, weight: Tensor, epsilon: float, *, chained: bool = False
) -> Tensor:
    """x [R, D], weight [2 I, D] -> [R, I]"""
    (R, D), width = x.shape, len(weight) // 2
    out = x.new_empty(R, width)
    tile = choose_product_tile(R)
    _gated[(triton.cdiv(R, tile.rows), triton.cdiv(width, tile.columns))](
        x, norm_weight, weight, out, R, D, width, epsilon,
        columns=tile.columns, **_launch_options(tile, x, chained),
    )  # fmt: skip
    return out


def add_product(
    x: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor | None, *, chained: bool = False
) -> Tensor:
    """x [R, D] += inputs [R, E] @ weight [D, E].T + bias; returns x"""
    (R, D), E = x.shape, weight.shape[1]
    tile = choose_product_tile(R)
    _add_product[(triton.cdiv(R, tile.rows), triton.cdiv(D, tile.columns))](
        x, inputs, weight, weight if bias is None else bias, R, D, E,
        biased=bias is not None, columns=tile.columns, **_launch_options(tile, x, chained),
    )  # fmt: skip
    return x


def _launch_options(tile: ProductTile, x: Tensor, chained: bool) -> dict[str, object]:
    return {
        "rows": tile.rows,
        "block": tile.block,
        "precision": "ieee" if x.dtype == torch.float32 else "tf32",
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
        **launch_options(chained),
    }
