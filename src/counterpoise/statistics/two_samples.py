"""The change between two sets of measurements with unequal spread: Welch's t interval.

    d = mean(after) - mean(before)          s^2_a, s^2_b: unbiased variances
    v = s^2_a / n_a + s^2_b / n_b
    d +- t_{0.975, df} sqrt(v)              df = v^2 / sum_k [(s^2_k / n_k)^2 / (n_k - 1)]

The degrees of freedom are rounded down, because the quantile takes whole ones. For positive
quantities whose spread grows with their size, the same of their logarithms gives a ratio:

    exp(mean(log after) - mean(log before))
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from counterpoise.statistics.prompt_intervals import IntervalEstimate, t_critical


def change_estimate(before: Sequence[float], after: Sequence[float]) -> IntervalEstimate:
    """mean(after) - mean(before); fewer than two values on a side leave infinite bounds.

    Example:
        >>> change = change_estimate([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
        >>> round(change.mean, 3), round(change.low, 3), round(change.high, 3)
        (3.0, 0.733, 5.267)
    """
    before_N, after_N = (np.asarray(values, dtype=np.float64) for values in (before, after))
    mean = float(after_N.mean() - before_N.mean())
    if min(len(before_N), len(after_N)) < 2:
        return IntervalEstimate(mean, -math.inf, math.inf)
    squared_standard_errors = [
        float(values_N.var(ddof=1)) / len(values_N) for values_N in (before_N, after_N)
    ]
    variance = sum(squared_standard_errors)
    if variance == 0:
        return IntervalEstimate(mean, mean, mean)
    degrees = variance**2 / sum(
        squared_error**2 / (len(values_N) - 1)
        for squared_error, values_N in zip(
            squared_standard_errors, (before_N, after_N), strict=True
        )
    )
    half_width = t_critical(max(1, int(degrees))) * math.sqrt(variance)
    return IntervalEstimate(mean, mean - half_width, mean + half_width)


def ratio_estimate(before: Sequence[float], after: Sequence[float]) -> IntervalEstimate:
    """The ratio of geometric means of positive values, after over before.

    Example:
        >>> ratio_estimate([2.0, 2.0], [4.0, 4.0]).mean
        2.0
    """
    change = change_estimate(np.log(before).tolist(), np.log(after).tolist())
    return IntervalEstimate(*(_exp(bound) for bound in (change.mean, change.low, change.high)))


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 700 else math.inf
