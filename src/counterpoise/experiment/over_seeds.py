"""Curves of many seeds as one: the mean at every iteration, and its interval.

    value, low, high    mean over seeds with its 95 % interval (Student's t); one seed has no band
    at                  what the seeds had spent by then, on average: rollouts or updates

An iteration counts only where all seeds have it, so that no curve bends when one of them ends.
"""

from __future__ import annotations

from itertools import pairwise

from counterpoise.experiment.compare import Cost
from counterpoise.experiment.curves import Runs
from counterpoise.statistics.finding import Record
from counterpoise.statistics.student import student

WINDOW = 5  # iterations that noisy curves are averaged over, before seeds are


def over_seeds(
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
        mean = student([value for _, value in found])
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
