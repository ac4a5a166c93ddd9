"""Arms against each other, seed by seed.

    at equal rollouts     both runs of a seed read at the fewer rollouts that either sampled
    at equal updates      ... at the fewer optimizer steps that either took

A held-out curve is read linearly between its evaluations. RB waits for balanced batches and so
takes fewer updates for the rollouts it samples: being ahead at equal rollouts may be a matter of
updates, and the other way round. Therefore a verdict asks for both.

    better, replicated        at some rate both intervals lie above 0
    better, not replicated    at every rate both lie below the margin
    worse                     the same with the signs turned
    inconclusive              otherwise, and with fewer than three seeds or without spread

Without spread: all seeds have the very same difference. An interval of no width would exclude
everything else, and nothing stands behind it: mostly the two arms made the same runs, because the
option that tells them apart never acted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from counterpoise.errors import counted
from counterpoise.lab.experiments.curves import HELDOUT_COLUMN, Runs, learning_rates
from counterpoise.statistics.finding import Number, Record, Verdict
from counterpoise.statistics.student import Mean, student, together

LEVEL = 0.95  # of all intervals of a comparison together
FEWEST_SEEDS = 3  # for a verdict
FLOAT32_TOLERANCE = 1e-6  # of success, and of numbers as tables keep them (float32)
Cost = Literal["rollouts", "updates", "seconds"]  # seconds: where the records have them
Direction = Literal["better", "worse"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One arm against another at one rate, paired by seed, in success."""

    arm: str
    baseline: str
    rate: float
    rollouts: Mean  # at equal rollouts; without spread it has no bounds (nan) and p = 1
    updates: Mean  # at equal updates
    identical_runs: bool = False  # the runs of every pair are the same, iteration by iteration

    def above(self, bound: float) -> bool:
        """Both intervals lie above `bound`."""
        return self.decisive and min(self.rollouts.low, self.updates.low) > bound

    def below(self, bound: float) -> bool:
        return self.decisive and max(self.rollouts.high, self.updates.high) < bound

    @property
    def decisive(self) -> bool:
        """Two seeds may agree by chance: success is a multiple of 1 / samples."""
        spread = has_interval(self.rollouts) and has_interval(self.updates)
        return spread and self.rollouts.n >= FEWEST_SEEDS


def compare(
    runs: Runs,
    arm: str,
    baseline: str,
    *,
    column: str = HELDOUT_COLUMN,
    level: float = LEVEL,
    family: int | None = None,
) -> list[Comparison]:
    """At every rate; intervals hold for `family` comparisons together, by default the rates."""
    of_rates = learning_rates(runs)
    each = together(level, family or len(of_rates))
    found = []
    for rate in of_rates:
        at_rollouts, at_updates = (
            differences(runs, arm, baseline, rate, cost, column) for cost in ("rollouts", "updates")
        )
        if at_rollouts:
            means = _paired(at_rollouts, each), _paired(at_updates, each)
            found.append(Comparison(arm, baseline, rate, *means, _same(runs, arm, baseline, rate)))
    return found


def _paired(values: Sequence[float], level: float) -> Mean:
    mean = student(values, level)
    if mean.n > 1 and max(values) - min(values) < FLOAT32_TOLERANCE:
        return replace(mean, low=math.nan, high=math.nan, seen=math.nan, p=1.0)
    return mean


def has_interval(mean: Mean) -> bool:
    """It has an interval: one seed has none, nor a difference without spread."""
    return math.isfinite(mean.low)


def differences(
    runs: Runs, arm: str, baseline: str, rate: float, cost: Cost, column: str = HELDOUT_COLUMN
) -> list[float]:
    """Success of `arm` minus that of `against`, for every seed (and start) that both have."""
    found = []
    for pair in _pairs(runs, arm, baseline, rate):
        least = min(curve[-1][cost] for curve in pair)
        read = [interpolate_at(curve, cost, least, column) for curve in pair]
        if read[0] is not None and read[1] is not None:
            found.append(read[0] - read[1])
    return found


def _pairs(
    runs: Runs, arm: str, against: str, rate: float
) -> list[tuple[list[Record], list[Record]]]:
    """The two curves of every seed that both have, from the same start."""
    mine, theirs = (
        {key.seed: curve for key, curve in runs.items() if (key.arm, key.rate) == (who, rate)}
        for who in (arm, against)
    )
    pairs = [(mine[seed], theirs[seed]) for seed in sorted(mine.keys() & theirs.keys())]
    return [(a, b) for a, b in pairs if a[0].get("start") == b[0].get("start")]


def _same(runs: Runs, arm: str, against: str, rate: float) -> bool:
    """All that was measured is the same, but for the clock."""
    return all(
        len(a) == len(b) and all(_alike(r, q) for r, q in zip(a, b, strict=True))
        for a, b in _pairs(runs, arm, against, rate)
    )


def _alike(r: Record, q: Record) -> bool:
    for name in r.keys() | q.keys():
        x, y = r.get(name), q.get(name)
        if name.endswith("seconds") or isinstance(x or y, str):  # the clock; whose run it is
            continue
        if x is None or y is None:
            if x is not y:
                return False
        elif not math.isclose(x, y, rel_tol=FLOAT32_TOLERANCE, abs_tol=FLOAT32_TOLERANCE):
            return False
    return True


def interpolate_at(curve: Sequence[Record], cost: Cost, where: float, column: str) -> float | None:
    """Between the evaluations on a line; None when there are none."""
    known = [(r[cost], r[column]) for r in curve if r.get(column) is not None]
    if not known:
        return None
    at, value = zip(*known, strict=True)
    return float(np.interp(where, at, value))


def judge_comparisons(found: Sequence[Comparison], direction: Direction, margin: float) -> Verdict:
    """`margin` is positive: the smallest difference that would matter."""
    if direction == "better":
        shown = any(one.above(0) for one in found)
        excluded = bool(found) and all(one.below(margin) for one in found)
    else:
        shown = any(one.below(0) for one in found)
        excluded = bool(found) and all(one.above(-margin) for one in found)
    if shown:
        return "replicated"
    return "not replicated" if excluded else "inconclusive"


def describe_comparison(one: Comparison) -> str:
    """One comparison in words."""
    a, b, seeds = one.rollouts, one.updates, counted(one.rollouts.n, "seed")
    if one.identical_runs:
        return (
            f"at lr {one.rate:g} the arms made the same runs over {seeds}: the option never acted"
        )
    seen = f" (could have shown {100 * a.seen:.1f})" if has_interval(a) else ""
    if a.n > 1 and not (has_interval(a) and has_interval(b)):
        seen += ", the same at every seed: without spread nothing is judged"
    return (
        f"at lr {one.rate:g} {format_points(a)} at equal rollouts and {format_points(b)} at equal updates over "
        f"{seeds}{seen}"
    )


def format_points(mean: Mean) -> str:
    interval = f" [{100 * mean.low:+.1f}, {100 * mean.high:+.1f}]" if has_interval(mean) else ""
    return f"{100 * mean.value:+.1f} points{interval}"


def as_number(name: str, mean: Mean, unit: str = "share") -> Number:
    low, high = (mean.low, mean.high) if has_interval(mean) else (None, None)
    return Number(name, mean.value, low, high, unit=unit)
