"""Rank correlation of weighted records, for many weightings of the same records at once.

    rank_n   = sum_{m: x_m < x_n} w_m + 1/2 sum_{m: x_m = x_n} w_m        equal values share a rank
    rho      = corr_w(rank x, rank y)                                      Spearman's for w = 1

A bootstrap over prompts is a row of weights for every draw (`bootstrap.resampled`): ranks are taken
anew in each. nan where x or y is the same for all records that have weight.

Legend: D draws, N records, U distinct values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

DrawMatrix = NDArray[np.float64]  # [D, N]
FLAT_TOLERANCE = 1e-9  # a spread below this share of the largest rank is rounding


def weighted_ranks(x_N: ArrayLike, w_DN: DrawMatrix) -> DrawMatrix:
    """Mid-ranks [D, N].

    Example:
        >>> ranks([3.0, 1.0, 1.0], np.array([[1.0, 1.0, 1.0], [1.0, 0.0, 2.0]])).tolist()
        [[2.5, 1.0, 1.0], [2.5, 1.0, 1.0]]
    """
    _, place_N, count_U = np.unique(np.asarray(x_N), return_inverse=True, return_counts=True)
    order = np.argsort(place_N, kind="stable")
    starts = np.cumsum(count_U) - count_U
    w_DU = np.add.reduceat(w_DN[:, order], starts, axis=1)
    ranks_DU = np.cumsum(w_DU, axis=1) - w_DU / 2
    found: DrawMatrix = ranks_DU[:, place_N]
    return found


def weighted_correlations(
    a_DN: DrawMatrix, b_DN: DrawMatrix, w_DN: DrawMatrix
) -> NDArray[np.float64]:
    """Of ranks, weighted, one a draw: [D]."""
    whole_D1 = w_DN.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        a, b = (x - (w_DN * x).sum(axis=1, keepdims=True) / whole_D1 for x in (a_DN, b_DN))
        aa, bb, ab = ((w_DN * x * y).sum(axis=1) for x, y in ((a, a), (b, b), (a, b)))
        found: NDArray[np.float64] = ab / np.sqrt(aa * bb)
    whole_D = whole_D1[:, 0]
    flat = np.minimum(aa, bb) <= (FLAT_TOLERANCE * whole_D) ** 2 * whole_D
    return np.where(flat, np.nan, found)


def rank_correlations(x_N: ArrayLike, y_N: ArrayLike, w_DN: DrawMatrix) -> NDArray[np.float64]:
    """Spearman's, one a draw: [D].

    Example:
        >>> rank_correlations([1.0, 2.0, 9.0], [0.1, 0.2, 0.3], np.ones((1, 3))).round(6).tolist()
        [1.0]
    """
    return weighted_correlations(weighted_ranks(x_N, w_DN), weighted_ranks(y_N, w_DN), w_DN)
