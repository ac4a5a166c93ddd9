"""The tile of the decode attention kernel: keys read at once, warps of a program, pipeline stages.

DEFAULT_TILE runs everywhere. Smaller tiles were faster where a program has little work, on an H200
by 22 % for 3 key heads of 64 and by 9 % for 8 of 128 (the kernel alone). Whole sampling with 3 key
heads of 64 did not gain: 3 % slower for 128 tokens, 1.5 % faster for 1,024 (docs/results/speed.md).
Wider heads have not been measured; POISE_DECODE_TILE selects a tile for that:

    by_shape       the tile that `tile_for_shape` gives
    32,2,3         this tile for every shape: block, warps, stages
"""

from __future__ import annotations

import os
from typing import NamedTuple

from counterpoise.errors import PoiseError

VARIABLE = "POISE_DECODE_TILE"


class DecodeTile(NamedTuple):
    """How the kernel is launched."""

    block: int  # keys of one step of the loop
    num_warps: int
    num_stages: int


DEFAULT_TILE = DecodeTile(64, 4, 2)


def tile_for_shape(head_dim: int, queries_per_key: int) -> DecodeTile:
    """The tile for heads of this width, of which so many share a key."""
    # The kernel pads the query heads of a key head to 16; beyond these, four warps have work.
    if head_dim > 128 or queries_per_key > 16:
        return DEFAULT_TILE
    return DecodeTile(32, 1 if head_dim <= 64 else 2, 3)


def choose_tile(head_dim: int, queries_per_key: int) -> DecodeTile:
    """The tile that the environment asks for, by default DEFAULT_TILE."""
    request = os.environ.get(VARIABLE, "")
    if not request:
        return DEFAULT_TILE
    if request == "by_shape":
        return tile_for_shape(head_dim, queries_per_key)
    words = [word.strip() for word in request.split(",")]
    numbers = [int(word) for word in words] if all(map(str.isdecimal, words)) else []
    is_power_of_two = [number > 0 and number & (number - 1) == 0 for number in numbers]
    # tl.dot needs 16 keys at least, and Triton powers of two, except for stages.
    if len(numbers) != 3 or not all(is_power_of_two[:2]) or numbers[0] < 16 or not numbers[2]:
        raise PoiseError(
            f"{VARIABLE}={request}: give by_shape, or block, warps and stages such as 32,2,3, with "
            "a block of 16 or more and powers of two for block and warps"
        )
    return DecodeTile(*numbers)
