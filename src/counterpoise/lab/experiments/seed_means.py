"""Means over seeds with intervals: of a single number, or of a curve at every iteration.

    value, low, high    mean over seeds with its 95 % interval (Student's t), cut to the values that
                        the quantity can take; one seed has no interval
    at                  what the seeds had spent by then, on average: rollouts or updates

The true mean of a share lies in [0, 1]. The part of an interval outside that range covers nothing,
so cutting it off costs no coverage. With two or three seeds it matters: 40 and 60 % give -77 to
177 % by Student's t. Differences between arms (compare.py) are not cut, because verdicts and
p-values are computed from them.

An iteration counts only if all seeds have it, so that no curve bends where one of them ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from counterpoise.lab.experiments.compare import Cost
from counterpoise.lab.experiments.curves import Range, Runs, value_range
from counterpoise.statistics.finding import Record
from counterpoise.statistics.student import SeedMean, student_mean

SMOOTHING_WINDOW = 5  # iterations; noisy curves are smoothed before the mean over seeds


def mean_over_seeds(values: Sequence[float], value_range: Range) -> SeedMean:
    """The mean with its interval, cut to the values that the quantity can take.

    Example:
        >>> mean = mean_over_seeds([0.4, 0.6], (0.0, 1.0))
        >>> mean.value, mean.low, mean.high
        (0.5, 0.0, 1.0)
    """
    mean = student_mean(values)
    if mean.n < 2:
        return mean
    # Rounding may put the mean itself just outside the range: widen the range to include it.
    lower_bound, upper_bound = min(value_range[0], mean.value), max(value_range[1], mean.value)
    return replace(mean, low=max(mean.low, lower_bound), high=min(mean.high, upper_bound))


def mean_curve(
    runs: Runs, arm: str, rate: float, column: str, cost: Cost = "rollouts", *, window: int = 1
) -> list[Record]:
    """The mean curve of an arm: a point for every iteration that all seeds have measured."""
    curves = [
        curve for run_key, curve in runs.items() if (run_key.arm, run_key.rate) == (arm, rate)
    ]
    # iteration -> (spent, value) of every seed
    seed_points: dict[int, list[tuple[float, float]]] = {}
    for curve in curves:
        for record, value in _smoothed(curve, column, window):
            seed_points.setdefault(record["iteration"], []).append((record[cost], value))
    points = []
    for iteration, points_of_seeds in sorted(seed_points.items()):
        # Some seed ended before this iteration, or did not measure the column in it.
        if len(points_of_seeds) < len(curves):
            continue
        mean = mean_over_seeds([value for _, value in points_of_seeds], value_range(column))
        mean_cost = sum(cost_at for cost_at, _ in points_of_seeds) / len(points_of_seeds)
        low, high = (mean.low, mean.high) if mean.n > 1 else (mean.value, mean.value)
        points.append(
            {"at": mean_cost, "iteration": iteration, "value": mean.value, "low": low, "high": high}
        )
    return points


def _smoothed(curve: list[Record], column: str, window: int) -> list[tuple[Record, float]]:
    """Block means over `window` consecutive values, each placed at the last of them.

    Values after the last whole block are left out. A window of 1, or a curve too short for two
    windows, leaves the curve unchanged.
    """
    values = [(record, float(record[column])) for record in curve if record.get(column) is not None]
    if window == 1 or len(values) < 2 * window:
        return values
    block_edges = range(0, len(values) + 1, window)
    blocks = [values[block_start:block_stop] for block_start, block_stop in pairwise(block_edges)]
    return [(block[-1][0], sum(value for _, value in block) / window) for block in blocks]
