"""The value gap: how much more valuable boosted tokens are than suppressed ones.

    gap = 1/2 sum over signs of (mean value of boosted - mean value of suppressed)

within the rollouts of each sign; classes by |delta log p| > 1e-6. This equals the gap of equal
numbers of tokens from each of the four kinds, as in the paper, but uses all tokens. Pooled over
signs it would be large for an update that only follows the rollout's own reward: tokens of right
rollouts have higher values, and are boosted more.

A record is one token under one update: `prompt`, `sign`, `delta`, values, and `weight`, the number
of tokens it represents. Intervals resample prompts; two updates are compared on the same draws.
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

# Detectable effect per interval width: 5 % two-sided, power 80 %.
DETECTABLE_PER_WIDTH = (1.96 + 0.84) / (2 * 1.96)
PROBABILITY_EDGES = (0.2, 0.4, 0.6, 0.8)  # edges of p(o) for the matched gap


def value_gap(records: Records, field: str = "value") -> Interval:
    """The value gap, as a mean over the signs of rollouts that occur."""
    return bootstrap_interval(_prompts(records), _Columns.of(records, field).gap)


def gap_change(later: Records, earlier: Records, field: str = "value") -> Interval:
    """value_gap(later) - value_gap(earlier), on the same draws of prompts."""
    # Resampling the joined records gives a prompt the same weight in both updates.
    later_columns, earlier_columns = _Columns.of(later, field), _Columns.of(earlier, field)
    num_later = len(later)
    return bootstrap_interval(
        _prompts([*later, *earlier]),
        lambda w_N: later_columns.gap(w_N[:num_later]) - earlier_columns.gap(w_N[num_later:]),
    )


def pool_signs(records: Records) -> list[Record]:
    """The same tokens with one common sign, so that gaps pool positive and negative rollouts."""
    return [{**record, "sign": "any"} for record in records]


def gap_curve(
    records: Records, field: str, column: str, limits: Sequence[float]
) -> Callable[[Weights], list[float]]:
    """A function of weights: the gaps among the records with `column` up to each limit."""
    columns = _Columns.of(records, field)
    sort_key_N = np.array([record[column] for record in records], dtype=np.float64)
    limit_masks = [(sort_key_N <= limit).astype(np.float64) for limit in limits]
    return lambda w_N: [columns.gap(w_N * inside_N) for inside_N in limit_masks]


def matched_gap(records: Records, field: str = "value") -> Interval:
    """The gap among tokens of like probability and equal sign, averaged over bins of p(o).

    Likely tokens are boosted more often and have higher values, whatever the rewards; within a bin
    this cannot explain a gap. A bin has weight n+ n- / (n+ + n-), which minimises the variance.
    """
    columns = _Columns.of(records, field)
    bin_N = np.searchsorted(PROBABILITY_EDGES, [record["p"] for record in records])
    cells = [
        sign_N * (bin_N == bin_index)
        for sign_N in columns.signs
        for bin_index in range(len(PROBABILITY_EDGES) + 1)
    ]

    def statistic(w_N: Weights) -> float:
        weighted_sum = total_weight = 0.0
        for cell_N in cells:
            cell_gap, boosted_weight, suppressed_weight = columns.sides(w_N * cell_N)
            if boosted_weight and suppressed_weight:
                weight = boosted_weight * suppressed_weight / (boosted_weight + suppressed_weight)
                weighted_sum += weight * cell_gap
                total_weight += weight
        return weighted_sum / total_weight if total_weight else math.nan

    return bootstrap_interval(_prompts(records), statistic)


def strongest_quarter(records: Records) -> list[Record]:
    """The quarter of tokens with the largest |value|, ties included.

    Tokens are chosen by one half of the continuations and measured by the other, in both ways:
    choosing and measuring by the same noise would find large values where there are none.
    """
    selected: list[Record] = []
    for chosen_by, measured_by in (("even", "odd"), ("odd", "even")):
        size_N = np.abs([record[chosen_by] for record in records])
        threshold = np.quantile(size_N, 0.75)
        # Few continuations often give a value of exactly 0, which is never among the strongest.
        is_strong = (size_N >= threshold) & (size_N > 0)
        selected += [
            {**record, "value": record[measured_by]}
            for record, is_kept in zip(records, is_strong, strict=True)
            if is_kept
        ]
    return selected


def detectable_gap(interval: Interval) -> float:
    """The smallest true difference that an interval of this width would show in 80 % of cases."""
    return DETECTABLE_PER_WIDTH * (interval[2] - interval[1])


def format_interval(interval: Interval) -> str:
    value, low, high = (f"{bound:+.3f}" for bound in interval)
    return f"{value} [{low}, {high}]"


def verdict_from_intervals(intervals: Sequence[Interval]) -> Verdict:
    """All intervals above 0: replicated; any below: not replicated; otherwise inconclusive."""
    if all(low > 0 for _, low, _ in intervals):
        return "replicated"
    if any(high < 0 for _, _, high in intervals):
        return "not replicated"
    return "inconclusive"


def _prompts(records: Records) -> list[str]:
    return [record["prompt"] for record in records]


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """Columns of the records, each [N]."""

    value: NDArray[np.float64]
    boosted: Weights  # the token's weight if it is boosted, else 0
    suppressed: Weights  # its weight if it is suppressed, else 0
    signs: tuple[Weights, ...]  # 1 for the tokens of one sign, else 0

    @classmethod
    def of(cls, records: Records, field: str) -> _Columns:
        weight_N = np.array([record["weight"] for record in records], dtype=np.float64)
        class_N = displacement_classes(
            np.array([record["delta"] for record in records], dtype=np.float64)
        )
        sign_N = np.array([record["sign"] for record in records])
        return cls(
            np.array([record[field] for record in records], dtype=np.float64),
            weight_N * (class_N > 0),
            weight_N * (class_N < 0),
            tuple((sign_N == sign).astype(np.float64) for sign in sorted(set(sign_N.tolist()))),
        )

    def sides(self, w_N: Weights) -> tuple[float, float, float]:
        """(mean of boosted - mean of suppressed, weight of boosted, weight of suppressed)."""
        boosted_N, suppressed_N = self.boosted * w_N, self.suppressed * w_N
        side_gap = weighted_mean(self.value, boosted_N) - weighted_mean(self.value, suppressed_N)
        return side_gap, float(boosted_N.sum()), float(suppressed_N.sum())

    def gap(self, w_N: Weights) -> float:
        """The value gap; nan where a sign lacks boosted or suppressed tokens."""
        return sum(self.sides(w_N * sign_N)[0] for sign_N in self.signs) / len(self.signs)
