"""Means over a few seeds: Student's t intervals, detectable differences, corrected p-values.

    mean +- t_{1-a/2, n-1} s / sqrt(n)                         s: unbiased std over n seeds

Two arms with the same seeds saw the same prompts and the same start, so their difference is taken
seed by seed: what a seed does to both cancels. The smallest true difference that a comparison would
show with a probability of 80 % is (t_{1-a/2} + t_{0.8}) s / sqrt(n).

Among m comparisons some differ from 0 by chance. Bonferroni: intervals at level 1 - (1 - level) / m
hold together. Holm: multiply the smallest p by m, the next by m - 1 and so on, and let no value be
smaller than the one before.

P(|T| < t) has a closed form for whole degrees of freedom v, with x = atan(t / sqrt(v)):

    odd     2/pi (x + sin x (cos x + 2/3 cos^3 x + 2*4/(3*5) cos^5 x + ...))    up to cos^(v-2)
    even    sin x (1 + 1/2 cos^2 x + 1*3/(2*4) cos^4 x + ...)                   up to cos^(v-2)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

POWER = 0.8


@dataclass(frozen=True, slots=True)
class SeedMean:
    """A mean over seeds with its interval; the bounds of a single seed are nan.

    Example:
        student_mean([0.80, 0.78, 0.81])
        # SeedMean(value=0.797, low=0.759, high=0.835, detectable=0.047, n=3)
    """

    value: float
    low: float
    high: float
    detectable: float  # smallest true difference from 0 that these seeds would show 4 times in 5
    n: int
    p: float = math.nan  # two-sided p-value of the mean against 0


def student_mean(values: Sequence[float], level: float = 0.95) -> SeedMean:
    """The mean over seeds with its Student's t interval at `level`."""
    seed_count = len(values)
    mean = statistics.fmean(values)
    if seed_count < 2:
        return SeedMean(mean, math.nan, math.nan, math.nan, seed_count)
    standard_error = statistics.stdev(values) / math.sqrt(seed_count)
    critical_value = t_quantile((1 + level) / 2, seed_count - 1)
    half_width = critical_value * standard_error
    if standard_error:
        t = abs(mean) / standard_error
        p_value = max(0.0, 1 - _central_probability(t, seed_count - 1))
    else:
        # All values are equal: the mean either is 0 or differs from it for certain.
        p_value = float(mean == 0)
    return SeedMean(
        mean,
        mean - half_width,
        mean + half_width,
        half_width + t_quantile(POWER, seed_count - 1) * standard_error,
        seed_count,
        p_value,
    )


def detectable_difference(n: int, spread: float, level: float) -> float:
    """The smallest difference that n seeds would show, for differences with std `spread`.

    Example:
        >>> round(detectable_difference(16, 0.03, 0.95), 4)
        0.0225
    """
    factor = t_quantile((1 + level) / 2, n - 1) + t_quantile(POWER, n - 1)
    return factor * spread / math.sqrt(n)


def bonferroni_level(level: float, comparisons: int) -> float:
    """The level of each interval such that all of them hold together at `level` (Bonferroni)."""
    return 1 - (1 - level) / comparisons


def holm_adjust(p_values: Sequence[float]) -> list[float]:
    """Holm-adjusted p-values, in the order given.

    Example:
        >>> holm_adjust([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    adjusted, running_max = [0.0] * len(p_values), 0.0
    for rank, position in enumerate(
        sorted(range(len(p_values)), key=lambda position: p_values[position])
    ):
        running_max = max(running_max, min(1.0, (len(p_values) - rank) * p_values[position]))
        adjusted[position] = running_max
    return adjusted


@lru_cache(maxsize=256)  # slow over many prompts: each halving sums degrees / 2 terms
def t_quantile(p: float, degrees: int) -> float:
    """t with P(T < t) = p, for 0 < p < 1 and `degrees` degrees of freedom.

    Example:
        >>> round(t_quantile(0.975, 2), 3)
        4.303
    """
    if p < 0.5:
        return -t_quantile(1 - p, degrees)
    low, high = 0.0, 1.0
    while _central_probability(high, degrees) < 2 * p - 1:
        high *= 2
    # Bisection between the bounds: 80 halvings reach float64 precision, fewer as a rule.
    for _ in range(80):
        midpoint = (low + high) / 2
        if midpoint in (low, high):
            break
        if _central_probability(midpoint, degrees) < 2 * p - 1:
            low = midpoint
        else:
            high = midpoint
    return (low + high) / 2


def _central_probability(t: float, degrees: int) -> float:
    """P(|T| < t) by the closed form of the module docstring, where `degrees` is v."""
    angle = math.atan(t / math.sqrt(degrees))
    is_odd = degrees % 2
    cosine_squared = math.cos(angle) ** 2
    term = math.cos(angle) if is_odd else 1.0
    total = term if degrees > 1 else 0.0
    for denominator in range(2 + is_odd, degrees - 1, 2):
        term *= (denominator - 1) / denominator * cosine_squared
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if is_odd else math.sin(angle) * total
