"""Sets of tokens that push each other, laid out in blocks of equal width.

Tokens with an equal key (any label, such as the token id) form a set. Its kernel matrix
K[j, k] = (r_j . r_k)(h_j . h_k) takes two small matrix products, and a batch has thousands of sets.
So sets are combined into blocks [B, w] that one batched product handles: small sets share a row of
`row_width` places, larger ones have a row each, in blocks whose width doubles. Sets above
`max_size` are cheaper without K (`coupling_sums.py`) and are returned separately.

Unused places are filled with N, one past the last token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TokenIndices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class CouplingSets:
    """Sets of token indices, laid out in blocks.

    Example:
        >>> sets = lay_out_sets(np.array([7, 5, 7, 9, 7]), row_width=2, max_size=4)
        >>> [block.tolist() for block in sets.blocks]
        [[[1, 3]], [[0, 2, 4]]]
    """

    blocks: tuple[TokenIndices, ...]  # [B, w] each; a row holds whole sets
    large_sets: tuple[TokenIndices, ...]  # [n] each: a set with more than `max_size` tokens


def lay_out_sets(key_N: NDArray[np.int64], *, row_width: int, max_size: int) -> CouplingSets:
    """Group tokens of equal key; sets up to `row_width` share rows, larger ones get their own."""
    sorted_tokens = np.argsort(key_N, kind="stable")
    if not len(sorted_tokens):
        return CouplingSets((), ())
    # After sorting, a set is a run of equal keys: it starts where the key changes.
    starts = np.flatnonzero(np.r_[True, np.diff(key_N[sorted_tokens]) != 0])
    ends = np.r_[starts[1:], len(sorted_tokens)]
    sizes = ends - starts
    is_placed = sizes <= row_width
    blocks = [
        _shared_rows(
            sorted_tokens[np.repeat(is_placed, sizes)], sizes[is_placed], row_width, len(key_N)
        )
    ]
    # Sets that do not share a row get one each, in blocks of doubling width: less than half of a
    # row is padding.
    width = row_width
    while width < max_size:
        width = min(2 * width, max_size)
        gets_own_row = (sizes <= width) & ~is_placed
        is_placed |= gets_own_row
        blocks.append(
            _ranges_as_rows(sorted_tokens, starts[gets_own_row], ends[gets_own_row], len(key_N))
        )
    large_sets = [
        sorted_tokens[start:end]
        for start, end in zip(starts[~is_placed], ends[~is_placed], strict=True)
    ]
    return CouplingSets(tuple(block for block in blocks if block.size), tuple(large_sets))


def _shared_rows(
    sorted_tokens: TokenIndices, sizes: TokenIndices, width: int, padding: int
) -> TokenIndices:
    """Fill each row with as many consecutive whole sets as fit."""
    ends = np.cumsum(sizes)
    row_bounds = [0]
    while row_bounds[-1] < len(sorted_tokens):
        row_bounds.append(
            int(ends[np.searchsorted(ends, row_bounds[-1] + width, side="right") - 1])
        )
    return _ranges_as_rows(
        sorted_tokens, np.array(row_bounds[:-1]), np.array(row_bounds[1:]), padding
    )


def _ranges_as_rows(
    sorted_tokens: TokenIndices, starts: TokenIndices, ends: TokenIndices, padding: int
) -> TokenIndices:
    """[B, w]: one row for each range [start, end) of `sorted_tokens`, padded to the longest."""
    if not len(starts):
        return np.empty((0, 0), np.int64)
    positions = starts[:, None] + np.arange((ends - starts).max())
    inside = positions < ends[:, None]
    return np.where(inside, sorted_tokens[np.minimum(positions, len(sorted_tokens) - 1)], padding)
