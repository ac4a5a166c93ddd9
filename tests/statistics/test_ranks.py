"""Weighted rank correlations against copies of records, written out."""

from __future__ import annotations

import numpy as np
import pytest

from counterpoise.statistics.bootstrap import interval_from_draws, resampled_weights
from counterpoise.statistics.ranks import CentredRanks, correlations_by_row, rank_correlations


def slow_ranks(x: list[float]) -> list[float]:
    """One below plus half of the equal ones, itself among them."""
    return [sum(b < a for b in x) + sum(b == a for b in x) / 2 for a in x]


def slow(x: list[float], y: list[float], copies: list[int]) -> float:
    """Spearman's of records written down as often as their weight says."""
    xs = [a for a, n in zip(x, copies, strict=True) for _ in range(n)]
    ys = [b for b, n in zip(y, copies, strict=True) for _ in range(n)]
    return float(np.corrcoef(slow_ranks(xs), slow_ranks(ys))[0, 1])


def test_a_weight_is_a_number_of_copies() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 6, 40).astype(float).tolist()  # with ties
    y = (np.array(x) + rng.integers(0, 8, 40)).tolist()
    copies = rng.integers(0, 4, (5, 40))
    expected = [slow(x, y, row.tolist()) for row in copies]
    assert rank_correlations(x, y, copies.astype(float)) == pytest.approx(expected, abs=1e-12)


def test_ranks_of_ties_and_of_nobody() -> None:
    w_ND = np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 2.0], [0.0, 1.0]])  # two draws
    out, scratch = np.empty_like(w_ND), np.empty_like(w_ND)
    doubled = CentredRanks([3.0, 1.0, 1.0, 2.0]).doubled_ranks(
        w_ND, w_ND.sum(axis=0), out=out, scratch=scratch
    )
    mean_rank = w_ND.sum(axis=0) / 2
    assert (doubled / 2 + mean_rank).T.tolist() == [[2.5, 1.0, 1.0, 2.0], [3.5, 1.0, 1.0, 2.5]]
    distinct = CentredRanks([3.0, 0.0, 1.0, 2.0]).doubled_ranks(
        w_ND, w_ND.sum(axis=0), out=out, scratch=scratch
    )
    assert (distinct / 2 + mean_rank).T.tolist() == [[2.5, 0.5, 1.5, 2.0], [3.5, 0.0, 1.0, 2.5]]


@pytest.mark.parametrize(
    ("x", "y", "rho"),
    [
        ([1.0, 2.0, 3.0], [10.0, 20.0, 99.0], 1.0),
        ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0], -1.0),
        ([1.0, 2.0, 3.0], [2.0, 1.0, 3.0], 0.5),  # 1 - 6 (1 + 1) / (3 * 8)
        ([5.0, 5.0, 5.0], [1.0, 2.0, 3.0], np.nan),
    ],
)
def test_known_correlations(x: list[float], y: list[float], rho: float) -> None:
    assert rank_correlations(x, y, np.ones((1, 3)))[0] == pytest.approx(rho, nan_ok=True)


def test_a_draw_without_spread_is_nan_and_leaves_the_others() -> None:
    w_DN = np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 3.0]])
    found = rank_correlations([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], w_DN)
    assert found[0] == pytest.approx(1.0)
    assert np.isnan(found[1])


def test_resampled_records_have_the_weight_of_their_prompt() -> None:
    w_DN = resampled_weights(["a", "a", "b", "c"], 200)
    assert w_DN.shape == (201, 4)
    assert (w_DN[0] == 1).all()
    assert (w_DN[:, 0] == w_DN[:, 1]).all()
    assert (w_DN[:, 1:].sum(axis=1) == 3).all()  # three prompts drawn


def test_bounds_at_a_level() -> None:
    """Of very many prompts: the quantiles of the draws."""
    drawn, many = np.concatenate(([0.5], np.linspace(0, 1, 1001))), 200_000
    assert interval_from_draws(drawn, many) == pytest.approx((0.5, 0.025, 0.975), rel=1e-4)
    assert interval_from_draws(drawn, many, 0.99) == pytest.approx((0.5, 0.005, 0.995), rel=1e-4)
    assert np.isnan(interval_from_draws(drawn, 1)[1])


def test_rows_are_correlated_as_single_columns_are() -> None:
    x_KN, y_KN = np.random.default_rng(0).integers(0, 5, (2, 20, 12))  # with ties
    singly = [rank_correlations(x, y, np.ones((1, 12)))[0] for x, y in zip(x_KN, y_KN, strict=True)]
    np.testing.assert_allclose(correlations_by_row(x_KN, y_KN), singly, atol=1e-12)
