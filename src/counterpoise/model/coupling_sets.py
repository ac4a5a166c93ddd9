"""Sets of tokens that push each other, laid side by side in blocks of equal width.

Tokens of equal key form a set. A kernel of one set is a small matrix product, and a batch has
thousands of sets, so sets are put into blocks [B, w] that one batched product handles: small sets
share a row of `base` places, larger ones have a row each, in blocks whose width doubles. A set
that is cheaper without a kernel, above `most`, is left to the caller.

Places that are left over are filled with N, one past the last token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TokenIndices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class CouplingSets:
    """
    Example:
        >>> found = lay_out(np.array([7, 5, 7, 9, 7]), base=2, most=4)
        >>> [block.tolist() for block in found.blocks]
        [[[1, 3]], [[0, 2, 4]]]
    """

    blocks: tuple[TokenIndices, ...]  # [B, w] each; a row holds whole sets
    large_sets: tuple[TokenIndices, ...]  # [n] each: a set with more than `most` tokens


def lay_out_sets(key_N: NDArray[np.int64], *, row_width: int, max_size: int) -> CouplingSets:
    order = np.argsort(key_N, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(key_N[order]) != 0]) if len(order) else order
    ends = np.r_[starts[1:], len(order)] if len(order) else order
    sizes = ends - starts
    shared = sizes <= row_width
    blocks = [_side_by_side(order[np.repeat(shared, sizes)], sizes[shared], row_width, len(key_N))]
    width = row_width
    while width < max_size:
        width = min(2 * width, max_size)
        alone = (sizes <= width) & ~shared
        shared |= alone
        blocks.append(_rows(order, starts[alone], ends[alone], len(key_N)))
    large = [order[a:b] for a, b in zip(starts[~shared], ends[~shared], strict=True)]
    return CouplingSets(tuple(block for block in blocks if block.size), tuple(large))


def _side_by_side(
    order: TokenIndices, sizes: TokenIndices, width: int, nobody: int
) -> TokenIndices:
    """Consecutive whole sets in each row, as many as fit."""
    ends = np.cumsum(sizes)
    cuts = [0]
    while cuts[-1] < len(order):
        cuts.append(int(ends[np.searchsorted(ends, cuts[-1] + width, side="right") - 1]))
    return _rows(order, np.array(cuts[:-1]), np.array(cuts[1:]), nobody)


def _rows(
    order: TokenIndices, starts: TokenIndices, ends: TokenIndices, nobody: int
) -> TokenIndices:
    """[B, w]: a row for each stretch of `order`, as wide as the longest of them."""
    if not len(starts):
        return np.empty((0, 0), np.int64)
    at = starts[:, None] + np.arange((ends - starts).max())
    inside = at < ends[:, None]
    return np.where(inside, order[np.minimum(at, len(order) - 1)], nobody)
