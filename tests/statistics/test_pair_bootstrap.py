"""Intervals of statistics of pairs: sums by hand, coverage of a known truth."""

from __future__ import annotations

import numpy as np
import pytest

from counterpoise.statistics.bootstrap import mean_interval, resampled_weights
from counterpoise.statistics.pair_bootstrap import PairBootstrap


def test_sums_are_those_of_the_resampled_prompts() -> None:
    prompts_j, prompts_k, values = list("aabbc"), list("abbca"), [1.0, 2.0, 4.0, 8.0, 16.0]
    sums_D = PairBootstrap(prompts_j, prompts_k).sums(values)
    a_D, b_D, c_D = resampled_weights(list("abc")).T
    assert sums_D[0] == 31
    by_hand_D = a_D * 1 + a_D * b_D * 2 + b_D * 4 + b_D * c_D * 8 + c_D * a_D * 16
    assert sums_D == pytest.approx(by_hand_D)


def simulate_pairs(rng: np.random.Generator, P: int) -> np.ndarray:
    """x_pq = 10 + effect of p + effect of q + noise; within a prompt 3 more."""
    effect_P, other_effect_P = rng.normal(size=(2, P))
    noise_PP = rng.normal(size=(P, P))
    return 10 + effect_P[:, None] + other_effect_P + noise_PP + 3 * np.eye(P)


@pytest.mark.parametrize("P", [16, 48])
def test_intervals_cover_the_truth(P: int) -> None:
    """400 times. Resampling the prompts of j alone covers 85 % of the time."""
    rng = np.random.default_rng(0)
    prompts_j, prompts_k = (axis.ravel().tolist() for axis in np.indices((P, P)))
    pairs = PairBootstrap(prompts_j, prompts_k)
    truth = 10 + 3 / P
    covered = covered_by_one_side = 0
    for _ in range(400):
        x_N = simulate_pairs(rng, P).ravel()
        value, low, high = pairs.interval(pairs.means(x_N, np.ones(P * P)))
        assert value == pytest.approx(x_N.mean())
        covered += low < truth < high
        _, low, high = mean_interval(prompts_j, x_N)
        covered_by_one_side += low < truth < high
    assert 0.92 < covered / 400 < 0.98
    assert covered_by_one_side / 400 < 0.87


def test_a_ratio_of_heavy_tailed_means_is_covered() -> None:
    """Strengths are products of log-normal prompt effects, as couplings nearly are."""
    rng = np.random.default_rng(1)
    P, spread = 48, 0.7
    prompts_j, prompts_k = (axis.ravel().tolist() for axis in np.indices((P, P)))
    pairs = PairBootstrap(prompts_j, prompts_k)
    is_other = (np.array(prompts_j) != np.array(prompts_k)).astype(float)
    covered = 0
    for _ in range(300):
        strong_P, weak_P = np.exp(spread * rng.normal(size=(2, P)))
        strong_D = pairs.means(np.outer(strong_P, strong_P).ravel(), is_other)
        weak_D = pairs.means(np.outer(strong_P, weak_P).ravel(), is_other)
        _, low, high = pairs.interval(strong_D / weak_D)
        covered += low < 1 < high  # both means are exp(spread^2)
    assert 0.88 < covered / 300 < 0.98
