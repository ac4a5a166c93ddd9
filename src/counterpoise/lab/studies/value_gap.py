"""The value gap: how much more the boosted tokens are worth than the suppressed ones.

    gap = 1/2 sum over signs of (mean value of boosted - mean value of suppressed)

within the rollouts of each sign; classes by |delta log p| > 1e-6. That is the gap of equal numbers
of tokens from each of the four kinds, as the paper draws them, without throwing any away. Pooled
over signs it would be large for an update that only follows the rollout's own reward: tokens of
right rollouts are worth more, and are boosted more.

A record is one token under one update: `prompt`, `sign`, `delta`, values, and `weight`, the number
of tokens it stands for. Intervals resample prompts; two updates are compared on the same draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterpoise.microscope.displacement import displacement_classes
from counterpoise.statistics.bootstrap import Interval, Weights, bootstrap_interval, weighted_mean
from counterpoise.statistics.finding import Record, Records, Verdict

DETECTABLE_PER_WIDTH = (1.96 + 0.84) / (
    2 * 1.96
)  # of an interval's width: 5 % two-sided, power 80 %
PROBABILITY_EDGES = (0.2, 0.4, 0.6, 0.8)  # edges of p(o) for the matched gap


def value_gap(records: Records, field: str = "value") -> Interval:
    """Of the rollouts of both signs, or of one where there is only one."""
    return bootstrap_interval(_prompts(records), _Columns.of(records, field).gap)


def gap_change(later: Records, earlier: Records, field: str = "value") -> Interval:
    """gap(later) - gap(earlier)."""
    one, other = _Columns.of(later, field), _Columns.of(earlier, field)
    n = len(later)
    return bootstrap_interval(
        _prompts([*later, *earlier]), lambda w_N: one.gap(w_N[:n]) - other.gap(w_N[n:])
    )


def pool_signs(records: Records) -> list[Record]:
    """The same tokens as if all were of one sign."""
    return [{**record, "sign": "any"} for record in records]


def gap_curve(
    records: Records, field: str, by: str, limits: Sequence[float]
) -> Callable[[Weights], list[float]]:
    """The gaps among the records with `by` up to each limit, as a function of their weights."""
    columns = _Columns.of(records, field)
    by_N = np.array([r[by] for r in records], dtype=np.float64)
    within = [(by_N <= limit).astype(np.float64) for limit in limits]
    return lambda w_N: [columns.gap(w_N * inside_N) for inside_N in within]


def matched_gap(records: Records, field: str = "value") -> Interval:
    """The gap among tokens of like probability and equal sign, averaged over bins of p(o).

    Likely tokens are boosted more often and are worth more, whatever the rewards say; within a bin
    that is no explanation. A bin weighs n+ n- / (n+ + n-), what gives the least variance.
    """
    columns = _Columns.of(records, field)
    bin_N = np.searchsorted(PROBABILITY_EDGES, [r["p"] for r in records])
    cells = [
        sign_N * (bin_N == b) for sign_N in columns.signs for b in range(len(PROBABILITY_EDGES) + 1)
    ]

    def statistic(w_N: Weights) -> float:
        total = weights = 0.0
        for cell_N in cells:
            value, up, down = columns.sides(w_N * cell_N)
            if up and down:
                weight = up * down / (up + down)
                total += weight * value
                weights += weight
        return total / weights if weights else math.nan

    return bootstrap_interval(_prompts(records), statistic)


def strongest_quarter(records: Records) -> list[Record]:
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


def detectable_gap(found: Interval) -> float:
    """The smallest true difference that an interval of this width would usually (80 %) exclude."""
    return DETECTABLE_PER_WIDTH * (found[2] - found[1])


def format_interval(found: Interval) -> str:
    value, low, high = (f"{x:+.3f}" for x in found)
    return f"{value} [{low}, {high}]"


def verdict_from_intervals(found: Sequence[Interval]) -> Verdict:
    """All intervals above 0: replicated; any below: not replicated; otherwise inconclusive."""
    if all(low > 0 for _, low, _ in found):
        return "replicated"
    if any(high < 0 for _, _, high in found):
        return "not replicated"
    return "inconclusive"


def _prompts(records: Records) -> list[str]:
    return [r["prompt"] for r in records]


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """What the statistics read, each [N]."""

    value: NDArray[np.float64]
    up: Weights  # the token's weight if it is boosted, else 0
    down: Weights  # if it is suppressed
    signs: tuple[Weights, ...]  # 1 for the tokens of one sign, else 0

    @classmethod
    def of(cls, records: Records, field: str) -> _Columns:
        weight_N = np.array([r["weight"] for r in records], dtype=np.float64)
        class_N = displacement_classes(np.array([r["delta"] for r in records], dtype=np.float64))
        sign_N = np.array([r["sign"] for r in records])
        return cls(
            np.array([r[field] for r in records], dtype=np.float64),
            weight_N * (class_N > 0),
            weight_N * (class_N < 0),
            tuple((sign_N == sign).astype(np.float64) for sign in sorted(set(sign_N.tolist()))),
        )

    def sides(self, w_N: Weights) -> tuple[float, float, float]:
        """(mean of boosted - mean of suppressed, weight of boosted, weight of suppressed)."""
        up_N, down_N = self.up * w_N, self.down * w_N
        value = weighted_mean(self.value, up_N) - weighted_mean(self.value, down_N)
        return value, float(up_N.sum()), float(down_N.sum())

    def gap(self, w_N: Weights) -> float:
        """nan where a sign lacks one of the two classes."""
        return sum(self.sides(w_N * sign_N)[0] for sign_N in self.signs) / len(self.signs)
