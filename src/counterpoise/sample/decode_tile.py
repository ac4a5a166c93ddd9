"""How the decode attention kernel is launched: its tile, and the parts that a row is cut into.

The tile is the keys read at once, the warps of a program and the pipeline stages.

DEFAULT_TILE runs everywhere. Smaller tiles were faster where a program has little work, on an H200
by 22 % for 3 key heads of 64 and by 9 % for 8 of 128 (the kernel alone). Whole sampling with 3 key
heads of 64 did not gain: 3 % slower for 128 tokens, 1.5 % faster for 1,024 (docs/results/speed.md).
Wider heads have not been measured; POISE_DECODE_TILE selects a tile for that:

    by_shape       the tile that `tile_for_shape` gives
    32,2,3         this tile for every shape: keys read at once, warps, stages; where rows share
                   pages, at most the keys of a page are read at once

A program reads a row from its first key to its last. When only a few long rows are left, most of
the GPU is idle meanwhile, so every row is cut into parts that are read side by side, as many as
`parts_for_shape` gives: with 8 rows of up to 8,192 tokens a step of Qwen3-1.7B's shape took 2.4
instead of 5.3 ms on an H200. POISE_DECODE_PARTS asks for another number, 1 for whole rows.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from counterpoise.errors import PoiseError

VARIABLE = "POISE_DECODE_TILE"
PARTS_VARIABLE = "POISE_DECODE_PARTS"
MAX_PARTS = 16
LONG_ROW = 2048  # response tokens below which a second kernel costs more than it saves
PROGRAMS_WANTED = 1056  # eight for each multiprocessor of an H200


class DecodeTile(NamedTuple):
    """How the kernel is launched."""

    block: int  # keys of one step of the loop
    num_warps: int
    num_stages: int


DEFAULT_TILE = DecodeTile(64, 4, 2)


def tile_for_shape(head_dim: int, queries_per_key: int) -> DecodeTile:
    """The tile for heads of this width, if `queries_per_key` query heads share a key head."""
    # The kernel pads the query heads of a key head to 16. Larger shapes have work for four warps.
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


def parts_for_shape(num_programs: int, max_new_tokens: int) -> int:
    """How many parts to cut a row into; `num_programs` counts pairs of a row and a key head.

    Example:
        >>> [parts_for_shape(num_programs, 8192) for num_programs in (8, 128, 512, 2048)]
        [16, 16, 4, 1]
    """
    if max_new_tokens < LONG_ROW:
        return 1
    parts = 1
    while parts < MAX_PARTS and parts * num_programs < PROGRAMS_WANTED:
        parts *= 2
    return parts


def choose_parts(num_programs: int, max_new_tokens: int) -> int:
    """The parts that the environment asks for, by default those of `parts_for_shape`."""
    request = os.environ.get(PARTS_VARIABLE, "")
    if not request:
        return parts_for_shape(num_programs, max_new_tokens)
    parts = int(request) if request.isdecimal() else 0
    if not 1 <= parts <= MAX_PARTS or parts & (parts - 1):
        raise PoiseError(f"{PARTS_VARIABLE}={request}: give a power of two up to {MAX_PARTS}")
    return parts
