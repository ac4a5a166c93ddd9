"""95 % intervals of a success share over problems; samples of one problem are dependent.

Problem p has a value x_p in [0, 1]: the mean of its samples, or its pass@k. The interval is for the
mean over all problems that could have been posed, of which these P are a sample, so each problem
counts as one observation, however many samples it has:

    m = mean x_p      s2 = unbiased variance of x_p
    n = P (P m (1 - m) + c) / (P s2 + c),   c = 0.1        equivalent number of one-sample problems
    interval = Wilson's for the share m of n, with t_{P-1} in place of 1.96

One sample per problem gives nearly n = P: Wilson's own interval. Samples that differ within a
problem give n > P. The constant c keeps n bounded where nearly no problem, or nearly every problem,
was solved: a few half-solved problems then say little about how the others vary, and without c an
interval covers only 80 % of the time in the worst case. At 0 of P it is Wilson's interval for 0 of
P, never an empty one. tests/interval_coverage.py measures how often this interval and others hold.

The interval of a mean over benchmarks follows from theirs (Zou and Donner, each side by itself):

    low = m - sqrt(sum_b (m_b - low_b)^2) / B       high = m + sqrt(sum_b (high_b - m_b)^2) / B

Two policies on the same problems are compared problem by problem: Student's t of the differences,
with their variance raised by c / P for the same reason. Graded rewards, which have no bounds, get
Student's t without c.

A single problem says nothing about others: its interval is all that the value could be, [0, 1] of a
share, [-1, 1] of a difference of shares, and without bounds of a reward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from counterpoise.statistics.student import t_quantile

VARIANCE_FLOOR = 0.1  # c of the module docstring: with c / P added, no variance is 0


@dataclass(frozen=True, slots=True)
class IntervalEstimate:
    """A value and its 95 % interval.

    Example:
        str(IntervalEstimate(0.463, 0.412, 0.514)) == "46.3 % [41.2, 51.4]"
    """

    mean: float
    low: float
    high: float

    @property
    def is_bounded(self) -> bool:
        """Whether the interval is known: that of a single graded reward has no bounds."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def share_estimate(values_P: ArrayLike) -> IntervalEstimate:
    """The mean of values in [0, 1], one per problem; a single problem gives the interval [0, 1].

    Example:
        >>> str(share_estimate([0.0] * 30)), str(share_estimate([1.0, 0.0] * 250))
        ('0.0 % [0.0, 12.2]', '50.0 % [45.6, 54.4]')
    """
    share_P = np.asarray(values_P, dtype=np.float64)
    P, mean = len(share_P), float(share_P.mean())
    if P < 2:
        return IntervalEstimate(mean, 0.0, 1.0)
    effective_size = (
        P
        * (P * mean * (1 - mean) + VARIANCE_FLOOR)
        / (P * float(share_P.var(ddof=1)) + VARIANCE_FLOOR)
    )
    # Wilson's interval can miss an extreme mean by rounding: keep the mean inside.
    low, high = wilson_interval(mean, effective_size, t_critical(P - 1))
    return IntervalEstimate(mean, min(low, mean), max(high, mean))


def mean_estimate(values_P: ArrayLike) -> IntervalEstimate:
    """The mean of any values, one per problem: m +- t_{P-1} s / sqrt(P), with s their deviation.

    A single problem says nothing about others: its interval has no bounds.

    Example:
        >>> format_reward(mean_estimate([0.0, 1.0, 2.0, 3.0]))
        '1.500 [-0.554, 3.554]'
    """
    value_P = np.asarray(values_P, dtype=np.float64)
    P, mean = len(value_P), float(value_P.mean())
    if P < 2:
        return IntervalEstimate(mean, -math.inf, math.inf)
    half_width = t_critical(P - 1) * float(value_P.std(ddof=1)) / math.sqrt(P)
    return IntervalEstimate(mean, mean - half_width, mean + half_width)


def format_reward(estimate: IntervalEstimate) -> str:
    """A mean reward with its interval, as plain numbers.

    Example:
        >>> format_reward(IntervalEstimate(0.352, 0.301, 0.403)), format_reward(mean_estimate([2]))
        ('0.352 [0.301, 0.403]', '2.000 [not known]')
    """
    interval = f"{estimate.low:.3f}, {estimate.high:.3f}" if estimate.is_bounded else "not known"
    return f"{estimate.mean:.3f} [{interval}]"


def average_estimates(estimates: Sequence[IntervalEstimate]) -> IntervalEstimate:
    """The plain mean over benchmarks; each counts once, whatever its size."""
    B = len(estimates)
    mean = sum(estimate.mean for estimate in estimates) / B
    distance_below = math.hypot(*(estimate.mean - estimate.low for estimate in estimates)) / B
    distance_above = math.hypot(*(estimate.high - estimate.mean for estimate in estimates)) / B
    return IntervalEstimate(mean, mean - distance_below, mean + distance_above)


def paired_difference(after_P: ArrayLike, before_P: ArrayLike) -> IntervalEstimate:
    """The difference of two policies on the same problems, in the same order."""
    difference_P = np.asarray(after_P, dtype=np.float64) - np.asarray(before_P, dtype=np.float64)
    P, mean = len(difference_P), float(difference_P.mean())
    if P < 2:
        return IntervalEstimate(mean, -1.0, 1.0)
    half_width = t_critical(P - 1) * math.sqrt(
        (float(difference_P.var(ddof=1)) + VARIANCE_FLOOR / P) / P
    )
    return IntervalEstimate(mean, max(-1.0, mean - half_width), min(1.0, mean + half_width))


def wilson_interval(share: float, n: float, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval for a share of n independent trials; n need not be whole."""
    z_squared = z * z
    centre = (share + z_squared / (2 * n)) / (1 + z_squared / n)
    half_width = (
        z / (1 + z_squared / n) * math.sqrt(share * (1 - share) / n + z_squared / (4 * n * n))
    )
    return max(0.0, centre - half_width), min(1.0, centre + half_width)


@lru_cache(maxsize=256)
def t_critical(degrees: int) -> float:
    """The 97.5 % quantile of Student's t: 1.96, corrected for few problems."""
    return t_quantile(0.975, degrees)
