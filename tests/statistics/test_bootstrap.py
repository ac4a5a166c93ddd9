"""Intervals over prompts: point values exact, bounds against theory, all ways agree."""

from __future__ import annotations

import math

import numpy as np
import pytest

from counterpoise.errors import PoiseError
from counterpoise.statistics.bootstrap import (
    difference_interval,
    interval,
    mean_interval,
    ratio_interval,
    weighted_mean,
)

RNG = np.random.default_rng(3)
PROMPTS = RNG.integers(30, size=400).tolist()
X = RNG.normal(size=400) + np.array(PROMPTS) / 10
Y = RNG.uniform(1, 5, size=400)


def test_the_quick_ways_are_the_slow_one() -> None:
    slow = interval(PROMPTS, lambda w: weighted_mean(X, w))
    assert mean_interval(PROMPTS, X) == pytest.approx(slow)
    slow = interval(PROMPTS, lambda w: float((w * X).sum() / (w * Y).sum()))
    assert ratio_interval(PROMPTS, X, Y) == pytest.approx(slow)
    chosen = Y > 2
    slow = interval(
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


def test_intervals_cover_the_truth() -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(400):
        values = rng.normal(size=60)
        _, low, high = mean_interval(list(range(60)), values)
        inside += low < 0 < high
    assert inside / 400 == pytest.approx(0.94, abs=0.04)  # percentile bootstrap: a little narrow


def test_one_prompt_has_no_interval() -> None:
    value, low, high = mean_interval(["a", "a"], [1.0, 3.0])
    assert value == 2.0
    assert math.isnan(low)
    assert math.isnan(high)


def test_nothing_to_average() -> None:
    with pytest.raises(PoiseError, match="nothing to average"):
        mean_interval([], [])


def test_draws_without_one_kind_are_left_out() -> None:
    """Two prompts, one of each kind: half of the draws have one kind only."""
    value, low, high = difference_interval(["a", "b"], [1.0, 0.0], [True, False])
    assert (value, low, high) == (1.0, 1.0, 1.0)
