"""Arms against each other, seed by seed.

    at equal rollouts     both runs of a seed read at the fewer rollouts that either sampled
    at equal updates      ... at the fewer optimizer steps that either took

A held-out curve is read linearly between its evaluations. RB waits for balanced batches and so
takes fewer updates for the rollouts it samples: being ahead at equal rollouts may be a matter of
updates, and the other way round. Therefore a verdict asks for both.

    better, replicated        at some rate both intervals lie above 0
    better, not replicated    at every rate both lie below the margin
    worse                     the same with the signs turned
    inconclusive              otherwise, and with fewer than three seeds
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from counterpoise.experiment.curves import HELDOUT, Runs, rates
from counterpoise.statistics.finding import Number, Record, Verdict
from counterpoise.statistics.student import Mean, student, together

LEVEL = 0.95  # of all intervals of a comparison together
FEWEST_SEEDS = 3  # for a verdict
Cost = Literal["rollouts", "updates", "seconds"]  # seconds: where the records have them
Way = Literal["better", "worse"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One arm against another at one rate, paired by seed, in success."""

    arm: str
    against: str
    rate: float
    rollouts: Mean  # at equal rollouts
    updates: Mean  # at equal updates

    def above(self, bound: float) -> bool:
        """Both intervals lie above `bound`."""
        return self.decisive and min(self.rollouts.low, self.updates.low) > bound

    def below(self, bound: float) -> bool:
        return self.decisive and max(self.rollouts.high, self.updates.high) < bound

    @property
    def decisive(self) -> bool:
        """Two seeds may agree by chance: success is a multiple of 1 / samples."""
        return self.rollouts.n >= FEWEST_SEEDS


def compare(
    runs: Runs,
    arm: str,
    against: str,
    *,
    column: str = HELDOUT,
    level: float = LEVEL,
    family: int | None = None,
) -> list[Comparison]:
    """At every rate; intervals hold for `family` comparisons together, by default the rates."""
    of_rates = rates(runs)
    each = together(level, family or len(of_rates))
    found = []
    for rate in of_rates:
        at_rollouts, at_updates = (
            differences(runs, arm, against, rate, cost, column) for cost in ("rollouts", "updates")
        )
        if at_rollouts:
            means = student(at_rollouts, each), student(at_updates, each)
            found.append(Comparison(arm, against, rate, *means))
    return found


def differences(
    runs: Runs, arm: str, against: str, rate: float, cost: Cost, column: str = HELDOUT
) -> list[float]:
    """Success of `arm` minus that of `against`, for every seed (and start) that both have."""
    mine, theirs = (
        {key.seed: curve for key, curve in runs.items() if (key.arm, key.rate) == (who, rate)}
        for who in (arm, against)
    )
    found = []
    for seed in sorted(mine.keys() & theirs.keys()):
        pair = mine[seed], theirs[seed]
        if pair[0][0].get("start") != pair[1][0].get("start"):  # of different warm-ups
            continue
        least = min(curve[-1][cost] for curve in pair)
        read = [read_at(curve, cost, least, column) for curve in pair]
        if read[0] is not None and read[1] is not None:
            found.append(read[0] - read[1])
    return found


def read_at(curve: Sequence[Record], cost: Cost, where: float, column: str) -> float | None:
    """Between the evaluations on a line; None when there are none."""
    known = [(r[cost], r[column]) for r in curve if r.get(column) is not None]
    if not known:
        return None
    at, value = zip(*known, strict=True)
    return float(np.interp(where, at, value))


def verdict(found: Sequence[Comparison], way: Way, margin: float) -> Verdict:
    """`margin` is positive: the smallest difference that would matter."""
    if way == "better":
        shown = any(one.above(0) for one in found)
        excluded = bool(found) and all(one.below(margin) for one in found)
    else:
        shown = any(one.below(0) for one in found)
        excluded = bool(found) and all(one.above(-margin) for one in found)
    if shown:
        return "replicated"
    return "not replicated" if excluded else "inconclusive"


def told(one: Comparison) -> str:
    """One comparison in words."""
    a, b = one.rollouts, one.updates
    seen = f" (could have shown {100 * a.seen:.1f})" if a.n > 1 else ""
    return (
        f"at lr {one.rate:g} {points(a)} at equal rollouts and {points(b)} at equal updates over "
        f"{counted(a.n, 'seed')}{seen}"
    )


def points(mean: Mean) -> str:
    interval = f" [{100 * mean.low:+.1f}, {100 * mean.high:+.1f}]" if mean.n > 1 else ""
    return f"{100 * mean.value:+.1f} points{interval}"


def counted(n: int, noun: str) -> str:
    """
    Example:
        >>> counted(1, "seed"), counted(12, "comparison")
        ('1 seed', '12 comparisons')
    """
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def as_number(name: str, mean: Mean, unit: str = "share") -> Number:
    """One seed has no interval."""
    low, high = (mean.low, mean.high) if mean.n > 1 else (None, None)
    return Number(name, mean.value, low, high, unit=unit)
