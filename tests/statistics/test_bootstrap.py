"""Intervals over prompts: point values exact, bounds against theory, all ways agree."""

from __future__ import annotations

import math

import numpy as np
import pytest

from counterpoise.errors import PoiseError
from counterpoise.statistics.bootstrap import (
    bootstrap_interval,
    difference_interval,
    format_interval,
    interval_from_draws,
    mean_interval,
    ratio_interval,
    weighted_mean,
)

RNG = np.random.default_rng(3)
PROMPTS = RNG.integers(30, size=400).tolist()
X = RNG.normal(size=400) + np.array(PROMPTS) / 10
Y = RNG.uniform(1, 5, size=400)


def test_the_quick_ways_are_the_slow_one() -> None:
    slow = bootstrap_interval(PROMPTS, lambda w: weighted_mean(X, w))
    assert mean_interval(PROMPTS, X) == pytest.approx(slow)
    slow = bootstrap_interval(PROMPTS, lambda w: float((w * X).sum() / (w * Y).sum()))
    assert ratio_interval(PROMPTS, X, Y) == pytest.approx(slow)
    chosen = Y > 2
    slow = bootstrap_interval(
        PROMPTS,
        lambda w: weighted_mean(X[chosen], w[chosen]) - weighted_mean(X[~chosen], w[~chosen]),
    )
    assert difference_interval(PROMPTS, X, chosen) == pytest.approx(slow)


def test_width_counts_prompts_not_records() -> None:
    """200 prompts with 50 equal records each: the error of a mean of 200 values."""
    values = np.random.default_rng(0).normal(size=200)
    prompts, records = np.repeat(np.arange(200), 50), np.repeat(values, 50)
    value, low, high = mean_interval(prompts.tolist(), records)
    assert value == pytest.approx(values.mean())
    assert high - low == pytest.approx(2 * 1.96 * values.std() / math.sqrt(200), rel=0.1)


@pytest.mark.parametrize(("prompts", "least"), [(6, 0.91), (8, 0.92), (16, 0.935), (60, 0.935)])
def test_intervals_cover_the_truth(prompts: int, least: float) -> None:
    """1,000 times. Plain quantiles of the draws cover 85, 88, 92 and 94 % of the time."""
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(1000):
        _, low, high = mean_interval(list(range(prompts)), rng.normal(size=prompts))
        inside += low < 0 < high
    assert least < inside / 1000 < 0.97


def test_the_quantiles_of_few_prompts_by_hand() -> None:
    """t_{0.975, 7} = 2.36462; times sqrt(8 / 7) it is 2.52788, beyond which a normal has 0.57 %."""
    drawn = np.concatenate(([0.5], np.linspace(0, 1, 100_001)))
    assert interval_from_draws(drawn, 8) == pytest.approx((0.5, 0.00574, 1 - 0.00574), abs=1e-4)


@pytest.mark.parametrize("prompts", [1, 2, 4])
def test_few_prompts_have_no_interval(prompts: int) -> None:
    """Of two prompts the draws reach no further than the two: they cover half of the time."""
    value, low, high = mean_interval([p for p in range(prompts) for _ in "ab"], [1, 3] * prompts)
    assert value == 2.0
    assert math.isnan(low)
    assert math.isnan(high)


def test_intervals_in_sentences() -> None:
    assert format_interval((0.254, 0.2, 0.31), "+.2f") == "+0.25 [+0.20, +0.31]"
    assert format_interval((0.254, 0.2, 0.31), ".0f", "%") == "25 % [20, 31]"
    unknown = (0.254, math.nan, math.nan)
    assert format_interval(unknown, ".1f", "points") == "25.4 points [no interval]"
    assert format_interval((math.nan,) * 3, ".1f") == "unknown"


def test_nothing_to_average() -> None:
    with pytest.raises(PoiseError, match="nothing to average"):
        mean_interval([], [])


@pytest.mark.parametrize(("holders", "known"), [(1, False), (3, False), (8, True)])
def test_what_hangs_on_few_prompts_has_no_interval(holders: int, known: bool) -> None:
    """Of 30 prompts some hold a token of the first kind: 36, 4 and 0.01 % of the draws have none.

    With one holder the draws that are left always have the same first mean, as if it were certain.
    """
    prompts = [p for p in range(30) for _ in "ab"]
    first = [p < holders and n % 2 == 0 for n, p in enumerate(prompts)]
    values = np.random.default_rng(0).normal(size=60)
    value, low, high = difference_interval(prompts, values, first)
    assert value == pytest.approx(values[first].mean() - np.delete(values, first).mean())
    assert math.isfinite(low) is known
    assert math.isfinite(high) is known
