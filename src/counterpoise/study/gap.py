"""The value gap: how much more the boosted tokens are worth than the suppressed ones.

    gap = mean value of boosted - mean value of suppressed              |delta log p| > 1e-6

A record is one token under one update: `prompt`, `delta`, values, and `weight`, the number of
tokens it stands for. Intervals resample prompts; two updates are compared on the same draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from counterpoise.microscope.displacement import classes
from counterpoise.study.bootstrap import Interval, Weights, interval, weighted_mean
from counterpoise.study.study import Record, Records, Verdict

POWER = (1.96 + 0.84) / (2 * 1.96)  # of an interval's width: 5 % two-sided, power 80 %
BINS = (0.2, 0.4, 0.6, 0.8)  # edges of p(o) for the matched gap
Statistic = Callable[[Weights], float]


def gap(records: Records, field: str = "value") -> Interval:
    return interval(_prompts(records), _gap(records, field))


def change(later: Records, earlier: Records, field: str = "value") -> Interval:
    """gap(later) - gap(earlier)."""
    one, other = _gap(later, field), _gap(earlier, field)
    n = len(later)
    return interval(_prompts([*later, *earlier]), lambda w_N: one(w_N[:n]) - other(w_N[n:]))


def curve(
    records: Records, field: str, by: str, limits: Sequence[float]
) -> Callable[[Weights], list[float]]:
    """The gaps among the records with `by` up to each limit, as a function of their weights."""
    columns = _columns(records, field)
    by_N = np.array([r[by] for r in records], dtype=np.float64)
    within = [(by_N <= limit).astype(np.float64) for limit in limits]
    return lambda w_N: [_sides(columns, w_N * inside)[0] for inside in within]


def matched_gap(records: Records, field: str = "value") -> Interval:
    """The gap among tokens of like probability, averaged over bins of p(o).

    Likely tokens are boosted more often and are worth more, whatever the rewards say; within a bin
    that is no explanation. A bin weighs n+ n- / (n+ + n-), what gives the least variance.
    """
    columns = _columns(records, field)
    bin_N = np.searchsorted(BINS, [r["p"] for r in records])

    def statistic(w_N: Weights) -> float:
        total = weights = 0.0
        for b in range(len(BINS) + 1):
            value, up, down = _sides(columns, w_N * (bin_N == b))
            if up and down:
                weight = up * down / (up + down)
                total += weight * value
                weights += weight
        return total / weights if weights else math.nan

    return interval(_prompts(records), statistic)


def strongest(records: Records) -> list[Record]:
    """The quarter of tokens with the largest |value|, ties included.

    Chosen by one half of the continuations and measured by the other, both ways: whoever chooses
    and measures by the same noise finds large values where there are none.
    """
    chosen: list[Record] = []
    for by, measured in (("even", "odd"), ("odd", "even")):
        size_N = np.abs([r[by] for r in records])
        least = np.quantile(size_N, 0.75)
        kept = (size_N >= least) & (size_N > 0)
        chosen += [
            {**r, "value": r[measured]} for r, keep in zip(records, kept, strict=True) if keep
        ]
    return chosen


def detectable(found: Interval) -> float:
    """The smallest true difference that an interval of this width would usually (80 %) exclude."""
    return POWER * (found[2] - found[1])


def counts(records: Records) -> tuple[int, int]:
    """(boosted, suppressed) records."""
    class_N = classes(np.array([r["delta"] for r in records]))
    return int((class_N > 0).sum()), int((class_N < 0).sum())


def _prompts(records: Records) -> list[str]:
    return [r["prompt"] for r in records]


Columns = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def _columns(records: Records, field: str) -> Columns:
    """(values, weight if boosted else 0, weight if suppressed else 0), each [N]."""
    value_N = np.array([r[field] for r in records], dtype=np.float64)
    weight_N = np.array([r["weight"] for r in records], dtype=np.float64)
    class_N = classes(np.array([r["delta"] for r in records]))
    return value_N, weight_N * (class_N > 0), weight_N * (class_N < 0)


def _sides(columns: Columns, w_N: Weights) -> tuple[float, float, float]:
    """(gap, boosted weight, suppressed weight)."""
    value_N, up_N, down_N = columns
    up, down = up_N * w_N, down_N * w_N
    value = weighted_mean(value_N, up) - weighted_mean(value_N, down)
    return value, float(up.sum()), float(down.sum())


def _gap(records: Records, field: str) -> Statistic:
    columns = _columns(records, field)
    return lambda w_N: _sides(columns, w_N)[0]


def told(found: Interval, scale: float = 1.0, digits: int = 3) -> str:
    value, low, high = (f"{scale * x:+.{digits}f}" for x in found)
    return f"{value} [{low}, {high}]"


def verdict_of(found: Sequence[Interval]) -> Verdict:
    """All intervals above 0: replicated; any below: not replicated; otherwise inconclusive."""
    if all(low > 0 for _, low, _ in found):
        return "replicated"
    if any(high < 0 for _, _, high in found):
        return "not replicated"
    return "inconclusive"
