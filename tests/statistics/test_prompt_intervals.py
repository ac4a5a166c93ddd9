"""Intervals over problems: closed forms, edges, and how often they hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from interval_coverage import MODELS, average_coverage, coverage

from counterpoise.statistics.prompt_intervals import (
    IntervalEstimate,
    average_estimates,
    format_reward,
    mean_estimate,
    paired_difference,
    share_estimate,
    wilson_interval,
)
from counterpoise.statistics.student import t_quantile


def test_one_sample_a_problem_is_wilsons_interval() -> None:
    """s2 = P m (1 - m) / (P - 1), so n = P but for a part in P."""
    found = share_estimate([1.0] * 150 + [0.0] * 350)
    low, high = wilson_interval(0.3, 500, t_quantile(0.975, 499))
    assert found.mean == pytest.approx(0.3)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_closed_form() -> None:
    """x = 1, 1/4, 0, 3/4: m = 1/2, s2 = 5/24, n = 4 (4/4 + 0.1) / (4 * 5/24 + 0.1) = 33/7."""
    found = share_estimate([1.0, 0.25, 0.0, 0.75])
    n, z = 33 / 7, 3.182446  # t with three degrees of freedom
    half = z / (1 + z * z / n) * math.sqrt(0.25 / n + z * z / (4 * n * n))
    assert found.mean == 0.5  # so Wilson's is centred there
    assert (found.low, found.high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-6)


def test_samples_that_agree_say_no_more_than_one() -> None:
    solved = np.array([1.0, 0, 0, 1, 1, 0, 1, 0])
    assert share_estimate(solved) == share_estimate(np.tile(solved[:, None], 32).mean(axis=1))


def test_nothing_solved_is_not_certain() -> None:
    z = t_quantile(0.975, 29)
    assert share_estimate([0.0] * 30).high == pytest.approx(z * z / (30 + z * z))
    assert share_estimate([1.0] * 30).low == pytest.approx(30 / (30 + z * z))
    assert (share_estimate([0.0] * 30).low, share_estimate([1.0] * 30).high) == (0.0, 1.0)
    assert share_estimate([0.5]) == IntervalEstimate(
        0.5, 0.0, 1.0
    )  # one problem says nothing about others


def test_one_graded_problem_has_no_interval() -> None:
    """Both bounds were once the mean: certainty from a single problem."""
    one = mean_estimate([0.9375])
    assert one == IntervalEstimate(0.9375, -math.inf, math.inf)
    assert not one.is_bounded
    assert format_reward(one) == "0.938 [not known]"
    both = average_estimates([one, mean_estimate([0.0, 1.0, 2.0])])
    assert (both.mean, both.low, both.high) == (0.96875, -math.inf, math.inf)


def test_nearly_nothing_solved_is_hardly_more_certain() -> None:
    """One sample of 960 right: without c, n would be 29 * 32 and the interval thirty times less."""
    one = share_estimate([1 / 32] + [0.0] * 29)
    assert one.high > 0.5 * share_estimate([0.0] * 30).high


@pytest.mark.parametrize(("problems", "samples"), [(30, 32), (40, 32), (128, 4), (500, 1)])
@pytest.mark.parametrize("mean", [0.1, 0.3, 0.5, 0.9])
def test_it_holds_the_truth_nineteen_times_in_twenty(
    problems: int, samples: int, mean: float
) -> None:
    """Correlation 0.5 of the samples of a problem; 3,000 evaluations, so 95 +- 0.8 by chance."""
    assert 0.93 <= coverage("ours", problems, samples, mean, 0.5, runs=3000) <= 0.97


def test_far_from_the_middle_it_errs_on_the_safe_side() -> None:
    assert coverage("ours", 30, 32, 0.05, 0.8, runs=2000) > 0.95
    assert coverage("without c", 30, 32, 0.05, 0.8, runs=2000) < 0.90
    assert coverage("samples independent", 30, 32, 0.3, 0.5, runs=500) < 0.5


def test_an_average_is_as_uncertain_as_its_parts() -> None:
    parts = [IntervalEstimate(0.2, 0.17, 0.24), IntervalEstimate(0.6, 0.56, 0.63)]
    found = average_estimates(parts)
    assert found.mean == pytest.approx(0.4)
    assert found.low == pytest.approx(0.4 - math.sqrt(0.03**2 + 0.04**2) / 2)
    assert found.high == pytest.approx(0.4 + math.sqrt(0.04**2 + 0.03**2) / 2)
    assert average_estimates(parts[:1]) == parts[0]


@pytest.mark.parametrize("model", MODELS)
def test_an_average_of_the_six_holds_the_truth(model: str) -> None:
    assert 0.93 <= average_coverage(MODELS[model], 0.5, runs=1000) <= 0.975


def test_differences_are_paired() -> None:
    rng = np.random.default_rng(0)
    difficulty = rng.random(200)
    found = paired_difference(difficulty + 0.1, difficulty)  # each problem better by the same
    assert found.mean == pytest.approx(0.1)
    half = t_quantile(0.975, 199) * math.sqrt(0.1 / 200 / 200)
    assert (found.low, found.high) == (pytest.approx(0.1 - half), pytest.approx(0.1 + half))
    alone = share_estimate(difficulty)
    assert half < (alone.high - alone.low) / 8


def test_paired_differences_hold_the_truth() -> None:
    rng = np.random.default_rng(1)
    before = rng.beta(1, 1, size=(2000, 40))
    after = np.clip(before + rng.normal(0.05, 0.2, size=before.shape), 0, 1)
    truth = float(np.clip(rng.beta(1, 1, 10**6) + rng.normal(0.05, 0.2, 10**6), 0, 1).mean() - 0.5)
    drawn = [
        (rng.binomial(32, a) / 32, rng.binomial(32, b) / 32)
        for a, b in zip(after, before, strict=True)
    ]
    held = [
        found.low <= truth <= found.high for found in (paired_difference(a, b) for a, b in drawn)
    ]
    assert 0.93 <= np.mean(held) <= 0.975
