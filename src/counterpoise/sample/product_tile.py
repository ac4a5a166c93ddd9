"""How the fused products of a decoding step are launched (`sample/kernels/products.py`)."""

from __future__ import annotations

import os
from typing import NamedTuple

from counterpoise.sample.decode_tile import parse_tile

VARIABLE = "POISE_PRODUCT_TILE"


class ProductTile(NamedTuple):
    """What one program computes, and how."""

    rows: int
    columns: int  # of the gate, and as many of up; the other kernel takes a head
    block: int  # numbers of the hidden state that are read at once
    num_warps: int
    num_stages: int


def tile_for_rows(rows: int) -> ProductTile:
    """The tile for a batch of so many rows: tl.dot needs 16 rows at least."""
    if rows <= 16:
        return ProductTile(16, 32, 128, 4, 4)
    if rows <= 32:
        return ProductTile(32, 32, 128, 4, 4)
    return ProductTile(64, 64, 64, 4, 4)


def tile_for_heads(rows: int, head_dim: int) -> ProductTile:
    """The same for the kernel whose columns are a head: wide ones leave memory for fewer stages.

    Shared memory stays below the 99 KB that GPUs of compute capability 8.6 and 8.9 have.
    """
    tile = tile_for_rows(rows)
    if head_dim <= 64:
        return tile
    return tile._replace(block=64 if head_dim <= 128 else 32, num_stages=3)


def choose_product_tile(rows: int, head_dim: int | None = None) -> ProductTile:
    """The tile that the environment asks for (64,64,64,4,4), by default one for the shape.

    `head_dim` is given for the kernel whose columns are a head.
    """
    if (tile := requested_tile()) is not None:
        return tile
    return tile_for_rows(rows) if head_dim is None else tile_for_heads(rows, head_dim)


def requested_tile() -> ProductTile | None:
    """The tile that the environment asks for, if it does; a wrong one is refused."""
    request = os.environ.get(VARIABLE, "")
    if not request:
        return None
    remedy = (
        "give rows, columns and block, powers of two of 16 or more, warps and stages, such as "
        "64,64,64,4,4"
    )
    return ProductTile(*parse_tile(VARIABLE, request, sizes=3, remedy=remedy))
