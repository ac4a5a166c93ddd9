"""95 % intervals of a share over problems, where samples of one problem are dependent.

Problem p is worth x_p in [0, 1]: the mean of its samples, or its pass@k. The problems are a draw
from those that could have been asked, so they are what is counted, and what is covered is the mean
over all that could:

    m = mean x_p      s2 = unbiased variance of x_p
    n = P (P m (1 - m) + c) / (P s2 + c),   c = 0.1        problems of one sample worth as much
    interval = Wilson's for the share m of n, with t_{P-1} in place of 1.96

One sample a problem gives n = P, nearly: Wilson's own interval. Samples that differ within
a problem give n > P. c keeps n from exploding where nearly nothing, or nearly everything, was
solved: a few half-solved problems then say little of how the others vary, and an interval without
c covers as seldom as 80 % of the time. At 0 of P it is Wilson's for 0 of P, never an empty one.
docs/evaluation.md has the coverage, of this and of the intervals that were tried.

A mean over benchmarks is as uncertain as its parts (Zou and Donner's rule, each side by itself):

    low = m - sqrt(sum_b (m_b - low_b)^2) / B       high = m + sqrt(sum_b (high_b - m_b)^2) / B

Two policies that answered the same problems are compared problem by problem: Student's t of the
differences, their variance raised by c / P for the same reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from counterpoise.statistics.student import t_quantile

VARIANCE_FLOOR = 0.1  # c


@dataclass(frozen=True, slots=True)
class IntervalEstimate:
    """A value and its 95 % interval.

    Example:
        str(IntervalEstimate(0.463, 0.412, 0.514)) == "46.3 % [41.2, 51.4]"
    """

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def share_estimate(values_P: ArrayLike) -> IntervalEstimate:
    """Of values in [0, 1], one a problem; a single problem says nothing about others.

    Example:
        >>> str(share([0.0] * 30)), str(share([1.0, 0.0] * 250))
        ('0.0 % [0.0, 12.2]', '50.0 % [45.6, 54.4]')
    """
    x_P = np.asarray(values_P, dtype=np.float64)
    P, mean = len(x_P), float(x_P.mean())
    if P < 2:
        return IntervalEstimate(mean, 0.0, 1.0)
    n = P * (P * mean * (1 - mean) + VARIANCE_FLOOR) / (P * float(x_P.var(ddof=1)) + VARIANCE_FLOOR)
    low, high = wilson_interval(mean, n, t_critical(P - 1))
    return IntervalEstimate(mean, min(low, mean), max(high, mean))


def average_estimates(parts: Sequence[IntervalEstimate]) -> IntervalEstimate:
    """The plain mean over benchmarks, each counted once whatever its size."""
    B = len(parts)
    mean = sum(part.mean for part in parts) / B
    below = math.hypot(*(part.mean - part.low for part in parts)) / B
    above = math.hypot(*(part.high - part.mean for part in parts)) / B
    return IntervalEstimate(mean, mean - below, mean + above)


def paired_difference(after_P: ArrayLike, before_P: ArrayLike) -> IntervalEstimate:
    """Of two policies on the same problems, in the same order."""
    d_P = np.asarray(after_P, dtype=np.float64) - np.asarray(before_P, dtype=np.float64)
    P, mean = len(d_P), float(d_P.mean())
    if P < 2:
        return IntervalEstimate(mean, -1.0, 1.0)
    half = t_critical(P - 1) * math.sqrt((float(d_P.var(ddof=1)) + VARIANCE_FLOOR / P) / P)
    return IntervalEstimate(mean, max(-1.0, mean - half), min(1.0, mean + half))


def wilson_interval(share: float, n: float, z: float = 1.96) -> tuple[float, float]:
    """Of a share of n independent trials, also at 0 and at 1; n need not be whole."""
    square = z * z
    middle = (share + square / (2 * n)) / (1 + square / n)
    half = z / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


@lru_cache(maxsize=256)
def t_critical(degrees: int) -> float:
    """In place of 1.96, where the variance is estimated from few problems."""
    return t_quantile(0.975, degrees)
