"""Means over a few seeds: Student's t, paired differences, and what could have been seen.

    mean +- t_{1-a/2, n-1} s / sqrt(n)                         s: unbiased std over n seeds

Two arms that ran the same seeds saw the same prompts and start, so their difference is taken seed
by seed: what a seed does to both cancels. The smallest difference a comparison could have shown,
with a chance of 80 %, is (t_{1-a/2} + t_{0.8}) s / sqrt(n).

Of m comparisons one or another is wide of 0 by chance. Bonferroni: intervals at 1 - (1 - level) / m
hold all together. Holm: the smallest p times m, the next times m - 1, and so on, each at least the
one before.

P(|T| < t) has a closed form for whole degrees of freedom v, with x = atan(t / sqrt(v)):

    odd     2/pi (x + sin x (cos x + 2/3 cos^3 x + 2*4/(3*5) cos^5 x + ...))    up to cos^(v-2)
    even    sin x (1 + 1/2 cos^2 x + 1*3/(2*4) cos^4 x + ...)                   up to cos^(v-2)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

POWER = 0.8


@dataclass(frozen=True, slots=True)
class SeedMean:
    """Over seeds; one seed alone has bounds of nan.

    Example:
        student([0.80, 0.78, 0.81])    # SeedMean(value=0.797, low=0.759, high=0.835, seen=0.047, n=3)
    """

    value: float
    low: float
    high: float
    detectable: (
        float  # the smallest true difference from 0 that these seeds would show, 4 times in 5
    )
    n: int
    p: float = math.nan  # of so large a mean, either way, were the true one 0


def student_mean(values: Sequence[float], level: float = 0.95) -> SeedMean:
    n = len(values)
    mean = statistics.fmean(values)
    if n < 2:
        return SeedMean(mean, math.nan, math.nan, math.nan, n)
    error = statistics.stdev(values) / math.sqrt(n)
    t = t_quantile((1 + level) / 2, n - 1)
    half = t * error
    p = max(0.0, 1 - _central_probability(abs(mean) / error, n - 1)) if error else float(mean == 0)
    return SeedMean(mean, mean - half, mean + half, half + t_quantile(POWER, n - 1) * error, n, p)


def detectable_difference(n: int, spread: float, level: float) -> float:
    """The smallest difference that n seeds would show whose differences have std `spread`.

    Example:
        >>> round(shown(16, 0.03, 0.95), 4)
        0.0225
    """
    factor = t_quantile((1 + level) / 2, n - 1) + t_quantile(POWER, n - 1)
    return factor * spread / math.sqrt(n)


def bonferroni_level(level: float, comparisons: int) -> float:
    """The level of each interval, so that all of them hold at `level` (Bonferroni)."""
    return 1 - (1 - level) / comparisons


def holm_adjust(ps: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the order given.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    adjusted, least = [0.0] * len(ps), 0.0
    for place, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        least = max(least, min(1.0, (len(ps) - place) * ps[i]))
        adjusted[i] = least
    return adjusted


def t_quantile(p: float, v: int) -> float:
    """t with P(T < t) = p, for 0 < p < 1 and v degrees of freedom.

    Example:
        >>> round(quantile(0.975, 2), 3)
        4.303
    """
    if p < 0.5:
        return -t_quantile(1 - p, v)
    low, high = 0.0, 1.0
    while _central_probability(high, v) < 2 * p - 1:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _central_probability(middle, v) < 2 * p - 1 else (low, middle)
    return (low + high) / 2


def _central_probability(t: float, v: int) -> float:
    """P(|T| < t)."""
    x = math.atan(t / math.sqrt(v))
    odd = v % 2
    term = math.cos(x) if odd else 1.0
    total = term if v > 1 else 0.0
    for k in range(2 + odd, v - 1, 2):
        term *= (k - 1) / k * math.cos(x) ** 2
        total += term
    return 2 / math.pi * (x + math.sin(x) * total) if odd else math.sin(x) * total
