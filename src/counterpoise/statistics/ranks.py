"""Rank correlations of weighted records, for many weightings of the same records at once.

    rank_n   = sum_{m: x_m < x_n} w_m + 1/2 sum_{m: x_m = x_n} w_m        equal values share a rank
    rho      = corr_w(rank x, rank y)                                      Spearman's for w = 1

A bootstrap over prompts gives a row of weights for each draw (`bootstrap.resampled_weights`), and
ranks are computed anew for each. nan where x or y is the same for all records with weight.

With W = sum_n w_n, and without ties in x, two sums need no ranks, only the weight S_n of all
records up to and including n in the order of x:

    sum_n w_n (rank x_n - W/2)^2                    = (W^3 - sum_n w_n^3) / 12
    sum_n w_n (rank x_n - W/2) (rank y_n - W/2)     = sum_n w_n (rank y_n - W/2) (S_n - w_n / 2)

Draws are the last axis of the matrices in here: sorting records then moves whole rows, and sums
over records add rows, which is several times as fast as the other way round.

Legend: D draws, N records, U distinct values of a column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

DrawMatrix = NDArray[np.float64]  # [D, N]
RowMatrix = NDArray[np.float64]  # [N, D] or [U, D]
FLAT_TOLERANCE = 1e-9  # a standard deviation below this share of the largest rank is rounding


class CentredRanks:
    """Ranks of the records by one column, minus their weighted mean, for any weights."""

    def __init__(self, x_N: ArrayLike) -> None:
        _, self._value_index_N, count_U = np.unique(
            np.asarray(x_N), return_inverse=True, return_counts=True
        )
        self._order_N = np.argsort(self._value_index_N, kind="stable")
        self._last_index_U = np.cumsum(count_U) - 1
        self.has_ties = len(count_U) < len(self._order_N)

    def doubled_ranks(
        self,
        w_ND: RowMatrix,
        weight_D: NDArray[np.float64],
        *,
        out: RowMatrix,
        scratch: RowMatrix,
    ) -> RowMatrix:
        """Twice the centred mid-ranks [N, D] with the weights w; `weight_D` is their sum per draw.

        They are written into `out`, and `scratch` is overwritten: new memory for every matrix would
        take as long as the sums.
        """
        weight_up_to_ND = np.take(w_ND, self._order_N, axis=0, out=out, mode="clip")
        # The mean rank, which the running sums carry from the first row to all others.
        weight_up_to_ND[0] -= weight_D / 2
        add_up_rows(weight_up_to_ND)
        weight_up_to_UD = weight_up_to_ND
        U = len(self._last_index_U)
        if len(w_ND) > U:
            weight_up_to_UD = weight_up_to_ND.take(self._last_index_U, axis=0)
        # A value's rank lies half way between the weight up to and including it and the weight up
        # to the value before: twice the rank is the sum of the two.
        rank_UD = scratch[:U]
        np.subtract(weight_up_to_UD[0], weight_D / 2, out=rank_UD[0])
        np.add(weight_up_to_UD[1:], weight_up_to_UD[:-1], out=rank_UD[1:])
        return np.take(rank_UD, self._value_index_N, axis=0, out=out, mode="clip")

    def weights_up_to(
        self, w_ND: RowMatrix, weight_D: NDArray[np.float64], *, out: RowMatrix
    ) -> RowMatrix:
        """S_n - W/2 of the records [N, D], in the order of the records, written into `out`."""
        rows, sums = list(w_ND), list(out)
        first, *later = self._order_N.tolist()
        sum_D = np.subtract(rows[first], weight_D / 2, out=sums[first])
        for index in later:
            sum_D = np.add(sum_D, rows[index], out=sums[index])
        return out


def add_up_rows(x_ND: RowMatrix) -> None:
    """Replace each row by the sum of the rows up to it. numpy.cumsum does it a column at a time,
    which takes several times as long."""
    rows = list(x_ND)
    for row, next_row in pairwise(rows):
        np.add(row, next_row, out=next_row)


def correlations_with(
    y_N: ArrayLike, columns: Mapping[str, ArrayLike], weight_chunks: Iterable[DrawMatrix]
) -> dict[str, NDArray[np.float64]]:
    """Spearman's rank correlations of several columns with y, one per column and draw: [D] each."""
    ranks_of_y = CentredRanks(y_N)
    ranks_of_columns = {name: CentredRanks(x_N) for name, x_N in columns.items()}
    chunks: dict[str, list[NDArray[np.float64]]] = {name: [] for name in columns}
    for w_DN in weight_chunks:
        w_ND = np.ascontiguousarray(w_DN.T)
        weight_D = w_ND.sum(axis=0)
        # Constant ranks leave a variance of rounding errors, whose correlation means nothing. The
        # largest rank is at most weight_D; the last factor is there because variances are sums.
        smallest_variance_D = (2 * FLAT_TOLERANCE * weight_D) ** 2 * weight_D
        y_ND, x_ND, scratch_ND = (np.empty_like(w_ND) for _ in range(3))
        ranks_of_y.doubled_ranks(w_ND, weight_D, out=y_ND, scratch=scratch_ND)
        weighted_y_ND = w_ND * y_ND
        # einsum: sums over thousands of records without a matrix of products
        var_y_D = np.einsum("nd,nd->d", weighted_y_ND, y_ND)
        own_share_D = np.einsum("nd,nd->d", weighted_y_ND, w_ND)
        var_without_ties_D = (weight_D**3 - np.einsum("nd,nd,nd->d", w_ND, w_ND, w_ND)) / 3
        for name, ranks_of_x in ranks_of_columns.items():
            if ranks_of_x.has_ties:
                ranks_of_x.doubled_ranks(w_ND, weight_D, out=x_ND, scratch=scratch_ND)
                covariance_D = np.einsum("nd,nd->d", x_ND, weighted_y_ND)
                var_x_D = np.einsum("nd,nd,nd->d", w_ND, x_ND, x_ND)
            else:
                ranks_of_x.weights_up_to(w_ND, weight_D, out=x_ND)
                covariance_D = 2 * np.einsum("nd,nd->d", x_ND, weighted_y_ND) - own_share_D
                var_x_D = var_without_ties_D
            is_flat_D = np.minimum(var_x_D, var_y_D) <= smallest_variance_D
            with np.errstate(divide="ignore", invalid="ignore"):
                correlation_D = covariance_D / np.sqrt(var_x_D * var_y_D)
            chunks[name].append(np.where(is_flat_D, np.nan, correlation_D))
    return {name: np.concatenate(column_chunks) for name, column_chunks in chunks.items()}


def rank_correlations(x_N: ArrayLike, y_N: ArrayLike, w_DN: DrawMatrix) -> NDArray[np.float64]:
    """Spearman's rank correlations, one per draw: [D].

    Example:
        >>> rank_correlations([1.0, 2.0, 9.0], [0.1, 0.2, 0.3], np.ones((1, 3))).round(6).tolist()
        [1.0]
    """
    return correlations_with(y_N, {"x": x_N}, [w_DN])["x"]


def correlations_by_row(x_KN: ArrayLike, y_KN: ArrayLike) -> NDArray[np.float64]:
    """Spearman's rank correlation of each row of x with the same row of y: [K].

    Every pair of a row's values is compared, so rows should be short. nan where a row is constant.

    Example:
        >>> correlations_by_row([[1, 2, 9], [1, 1, 1]], [[3, 2, 1], [3, 2, 1]]).tolist()
        [-1.0, nan]
    """
    x_ranks_KN, y_ranks_KN = (
        np.sign(values[:, :, None] - values[:, None, :]).sum(axis=2)  # twice the centred mid-rank
        for values in (np.asarray(x_KN, np.float64), np.asarray(y_KN, np.float64))
    )
    covariance_K = (x_ranks_KN * y_ranks_KN).sum(axis=1)
    with np.errstate(invalid="ignore"):
        return covariance_K / np.sqrt((x_ranks_KN**2).sum(axis=1) * (y_ranks_KN**2).sum(axis=1))
