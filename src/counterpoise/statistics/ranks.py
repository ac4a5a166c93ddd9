"""Rank correlations of weighted records, for many weightings of the same records at once.

    rank_n   = sum_{m: x_m < x_n} w_m + 1/2 sum_{m: x_m = x_n} w_m        equal values share a rank
    rho      = corr_w(rank x, rank y)                                      Spearman's for w = 1

A bootstrap over prompts gives a row of weights for each draw (`bootstrap.resampled_weights`), and
ranks are computed anew for each. nan where x or y is the same for all records with weight.

Legend: D draws, N records, U distinct values.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

DrawMatrix = NDArray[np.float64]  # [D, N]
FLAT_TOLERANCE = 1e-9  # a standard deviation below this share of the largest rank is rounding


def weighted_ranks(x_N: ArrayLike, w_DN: DrawMatrix) -> DrawMatrix:
    """Weighted mid-ranks [D, N]: equal values share a rank.

    Example:
        >>> weighted_ranks([3.0, 1.0, 1.0], np.array([[1.0, 1.0, 1.0], [1.0, 0.0, 2.0]])).tolist()
        [[2.5, 1.0, 1.0], [2.5, 1.0, 1.0]]
    """
    _, value_index_N, count_U = np.unique(np.asarray(x_N), return_inverse=True, return_counts=True)
    order_by_value = np.argsort(value_index_N, kind="stable")
    last_index_U = np.cumsum(count_U) - 1
    # The weight up to and including each distinct value. A value's rank lies half way between this
    # and the weight up to the value before.
    weight_up_to_DU = np.cumsum(w_DN.take(order_by_value, axis=1), axis=1).take(
        last_index_U, axis=1
    )
    ranks_DU = weight_up_to_DU / 2
    ranks_DU[:, 1:] += weight_up_to_DU[:, :-1] / 2
    ranks_DN: DrawMatrix = ranks_DU.take(value_index_N, axis=1)
    return ranks_DN


def weighted_correlations(
    a_DN: DrawMatrix, b_DN: DrawMatrix, w_DN: DrawMatrix
) -> NDArray[np.float64]:
    """Weighted correlations of ranks, one per draw: [D]."""
    weight_D1 = w_DN.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        a_centred, b_centred = (
            x - np.einsum("dn,dn->d", w_DN, x)[:, None] / weight_D1 for x in (a_DN, b_DN)
        )
        # einsum: sums over thousands of draws without a matrix of products for each
        var_a, var_b, covariance = (
            np.einsum("dn,dn,dn->d", w_DN, x, y)
            for x, y in ((a_centred, a_centred), (b_centred, b_centred), (a_centred, b_centred))
        )
        correlation_D: NDArray[np.float64] = covariance / np.sqrt(var_a * var_b)
    weight_D = weight_D1[:, 0]
    # Constant ranks leave a variance of rounding errors, whose correlation means nothing. The
    # largest rank is at most weight_D; the last factor is there because var_a and var_b are sums.
    is_flat_D = np.minimum(var_a, var_b) <= (FLAT_TOLERANCE * weight_D) ** 2 * weight_D
    return np.where(is_flat_D, np.nan, correlation_D)


def rank_correlations(x_N: ArrayLike, y_N: ArrayLike, w_DN: DrawMatrix) -> NDArray[np.float64]:
    """Spearman's rank correlations, one per draw: [D].

    Example:
        >>> rank_correlations([1.0, 2.0, 9.0], [0.1, 0.2, 0.3], np.ones((1, 3))).round(6).tolist()
        [1.0]
    """
    return weighted_correlations(weighted_ranks(x_N, w_DN), weighted_ranks(y_N, w_DN), w_DN)
