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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterpoise.microscope.displacement import displacement_classes
from counterpoise.statistics.bootstrap import (
    Interval,
    Weights,
    format_interval,
    interval_from_draws,
    sums_over_draws,
)
from counterpoise.statistics.finding import Record, Records, Verdict

# Detectable effect per interval width: 5 % two-sided, power 80 %.
DETECTABLE_PER_WIDTH = (1.96 + 0.84) / (2 * 1.96)
PROBABILITY_EDGES = (0.2, 0.4, 0.6, 0.8)  # edges of p(o) for the matched gap


def value_gap(records: Records, field: str = "value") -> Interval:
    """The value gap, as a mean over the signs of rollouts that occur."""
    columns = _Columns.of(records, field)
    return _interval(columns.gaps(_prompts(records), columns.signs), records)


def gap_change(later: Records, earlier: Records, field: str = "value") -> Interval:
    """value_gap(later) - value_gap(earlier), on the same draws of prompts."""
    # Resampling the joined records gives a prompt the same weight in both updates.
    joined = [*later, *earlier]
    is_later_N = np.arange(len(joined)) < len(later)
    columns = _Columns.of(joined, field)
    later_D, earlier_D = (
        columns.gaps(
            _prompts(joined),
            [sign_N & update_N for sign_N in columns.signs if (sign_N & update_N).any()],
        )
        for update_N in (is_later_N, ~is_later_N)
    )
    return _interval(later_D - earlier_D, joined)


def pool_signs(records: Records) -> list[Record]:
    """The same tokens with one common sign, so that gaps pool positive and negative rollouts."""
    return [{**record, "sign": "any"} for record in records]


def gap_curves(
    records: Records, field: str, column: str, limits: Sequence[float]
) -> NDArray[np.float64]:
    """The gaps among the records with `column` up to each limit: [1 + draws, limits].

    The first row is that of the data itself, the others are bootstrap draws.
    """
    columns = _Columns.of(records, field)
    sort_key_N = np.array([record[column] for record in records], dtype=np.float64)
    in_cells = [sign_N & (sort_key_N <= limit) for limit in limits for sign_N in columns.signs]
    gap_DC = columns.cell_gaps(_prompts(records), in_cells)[0]
    return gap_DC.reshape(len(gap_DC), len(limits), -1).mean(axis=2)


def matched_gap(records: Records, field: str = "value") -> Interval:
    """The gap among tokens of like probability and equal sign, averaged over bins of p(o).

    Likely tokens are boosted more often and have higher values, whatever the rewards; within a bin
    this cannot explain a gap. A bin has weight n+ n- / (n+ + n-), which minimises the variance.
    """
    columns = _Columns.of(records, field)
    bin_N = np.searchsorted(PROBABILITY_EDGES, [record["p"] for record in records])
    in_cells = [
        sign_N & (bin_N == bin_index)
        for sign_N in columns.signs
        for bin_index in range(len(PROBABILITY_EDGES) + 1)
    ]
    gap_DC, boosted_DC, suppressed_DC = columns.cell_gaps(_prompts(records), in_cells)
    with np.errstate(divide="ignore", invalid="ignore"):
        weight_DC = np.nan_to_num(boosted_DC * suppressed_DC / (boosted_DC + suppressed_DC))
        weighted_gap_DC = np.where(weight_DC > 0, weight_DC * gap_DC, 0.0)
        return _interval(weighted_gap_DC.sum(axis=1) / weight_DC.sum(axis=1), records)


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


def format_gap(interval: Interval) -> str:
    return format_interval(interval, "+.3f")


def detectable_note(sentence: str, *intervals: Interval) -> list[str]:
    """The sentence with the detectable gap of each interval; nothing if one of them is unknown."""
    gaps = [detectable_gap(interval) for interval in intervals]
    return [sentence.format(*gaps)] if np.isfinite(gaps).all() else []


def verdict_from_intervals(intervals: Sequence[Interval]) -> Verdict:
    """All intervals above 0: replicated; any below: not replicated; otherwise inconclusive."""
    if all(low > 0 for _, low, _ in intervals):
        return "replicated"
    if any(high < 0 for _, _, high in intervals):
        return "not replicated"
    return "inconclusive"


def _prompts(records: Records) -> list[str]:
    return [record["prompt"] for record in records]


def _interval(statistic_D: NDArray[np.float64], records: Records) -> Interval:
    return interval_from_draws(statistic_D, len(set(_prompts(records))))


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """Columns of the records, each [N]."""

    value: NDArray[np.float64]
    boosted: Weights  # the token's weight if it is boosted, else 0
    suppressed: Weights  # its weight if it is suppressed, else 0
    signs: tuple[NDArray[np.bool_], ...]  # whether a token's rollout has that sign

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
            tuple(sign_N == sign for sign in sorted(set(sign_N.tolist()))),
        )

    def cell_gaps(
        self, prompts_N: Sequence[str], in_cells: Sequence[NDArray[np.bool_]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """(mean of boosted - mean of suppressed, weight of boosted, weight of suppressed), for each
        draw of prompts and each cell: [1 + draws, C]. The gap is nan without one or the other."""
        sums_DK = sums_over_draws(
            prompts_N,
            (
                column_N * is_inside_N
                for column_N in (
                    self.boosted * self.value,
                    self.suppressed * self.value,
                    self.boosted,
                    self.suppressed,
                )
                for is_inside_N in in_cells
            ),
        )
        boosted_sum_DC, suppressed_sum_DC, boosted_DC, suppressed_DC = np.split(sums_DK, 4, axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            gap_DC = boosted_sum_DC / boosted_DC - suppressed_sum_DC / suppressed_DC
        return gap_DC, boosted_DC, suppressed_DC

    def gaps(
        self, prompts_N: Sequence[str], signs: Sequence[NDArray[np.bool_]]
    ) -> NDArray[np.float64]:
        """The value gap for each draw of prompts: [1 + draws]; nan where a sign lacks boosted or
        suppressed tokens."""
        return self.cell_gaps(prompts_N, signs)[0].mean(axis=1)
