"""Many seeds as one: the mean of a number, or of a curve at every iteration, and its interval.

    value, low, high    mean over seeds with its 95 % interval (Student's t), cut to the values that
                        the quantity can take; one seed has no interval
    at                  what the seeds had spent by then, on average: rollouts or updates

The mean over all seeds there could be lies where single values lie: that of a share in [0, 1]. What
of an interval is outside covers nothing, so cutting it off costs no coverage. With two or three
seeds it matters: from 40 and 60 % Student's t makes -77 to 177 %, which says that all is possible.
Differences between arms (compare.py) are left whole: verdicts and p-values are made of them.

An iteration counts only where all seeds have it, so that no curve bends when one of them ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from counterpoise.lab.experiments.compare import Cost
from counterpoise.lab.experiments.curves import Range, Runs, value_range
from counterpoise.statistics.finding import Record
from counterpoise.statistics.student import Mean, student

SMOOTHING_WINDOW = 5  # iterations that noisy curves are averaged over, before seeds are


def mean_over_seeds(values: Sequence[float], possible: Range) -> Mean:
    """
    Example:
        >>> found = mean_over_seeds([0.4, 0.6], (0.0, 1.0))
        >>> found.value, found.low, found.high
        (0.5, 0.0, 1.0)
    """
    mean = student(values)
    if mean.n < 2:
        return mean
    least, most = min(possible[0], mean.value), max(possible[1], mean.value)  # but for rounding
    return replace(mean, low=max(mean.low, least), high=min(mean.high, most))


def mean_curve(
    runs: Runs, arm: str, rate: float, column: str, cost: Cost = "rollouts", *, window: int = 1
) -> list[Record]:
    """A point for every iteration where the column is known for all seeds that got there."""
    curves = [c for key, c in runs.items() if (key.arm, key.rate) == (arm, rate)]
    known: dict[int, list[tuple[float, float]]] = {}  # iteration -> (spent, value) of every seed
    for curve in curves:
        for r, value in _averaged(curve, column, window):
            known.setdefault(r["iteration"], []).append((r[cost], value))
    points = []
    for iteration, found in sorted(known.items()):
        if len(found) < len(curves):
            continue
        mean = mean_over_seeds([value for _, value in found], value_range(column))
        spent = sum(at for at, _ in found) / len(found)
        low, high = (mean.low, mean.high) if mean.n > 1 else (mean.value, mean.value)
        points.append(
            {"at": spent, "iteration": iteration, "value": mean.value, "low": low, "high": high}
        )
    return points


def _averaged(curve: list[Record], column: str, window: int) -> list[tuple[Record, float]]:
    """Means over `window` known values in a row, each at the last of them; as is for a window of 1.

    A curve too short for two windows is left as it is.
    """
    known = [(r, float(r[column])) for r in curve if r.get(column) is not None]
    if window == 1 or len(known) < 2 * window:
        return known
    edges = range(0, len(known) + 1, window)
    blocks = [known[a:b] for a, b in pairwise(edges)]
    return [(block[-1][0], sum(v for _, v in block) / window) for block in blocks]
