"""Compare arms seed by seed, at equal rollouts and at equal updates.

    at equal rollouts     both runs of a seed at the number of rollouts that the shorter one sampled
    at equal updates      ... at the number of optimizer steps that the shorter one took

Held-out success is interpolated linearly between evaluations. RB waits for balanced batches and so
takes fewer updates for the rollouts it samples: an arm may be ahead at equal rollouts only because
of its number of updates, or the reverse. A verdict therefore needs both.

    hypothesis "better"    replicated        at some rate both intervals lie above 0
                           not replicated    at every rate both lie below the margin
                           inconclusive      otherwise, and with fewer than three seeds or without
                                             spread
    hypothesis "worse"     the same with opposite signs

Without spread: all seeds have exactly the same difference. The interval would have no width and
exclude everything else, without any evidence. Usually the two arms made the same runs, because the
option that distinguishes them never took effect.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from counterpoise.errors import format_count
from counterpoise.lab.experiments.curves import HELDOUT_COLUMN, Runs, learning_rates
from counterpoise.statistics.finding import Number, Record, Verdict
from counterpoise.statistics.student import SeedMean, bonferroni_level, student_mean

LEVEL = 0.95  # joint coverage of all intervals of a comparison
FEWEST_SEEDS = 3  # with fewer seeds there is no verdict
TOLERANCE = 1e-6  # curves are stored in float32
Cost = Literal["rollouts", "updates", "seconds"]  # seconds: where the records have them
Direction = Literal["better", "worse"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One arm against another at one rate, paired by seed, in success."""

    arm: str
    baseline: str
    rate: float
    rollouts: SeedMean  # at equal rollouts; without spread its bounds are nan and p = 1
    updates: SeedMean  # at equal updates
    identical_runs: bool = False  # both runs of every pair are equal in every iteration

    def above(self, bound: float) -> bool:
        """Whether both intervals lie above `bound`."""
        return self.decisive and min(self.rollouts.low, self.updates.low) > bound

    def below(self, bound: float) -> bool:
        """Whether both intervals lie below `bound`."""
        return self.decisive and max(self.rollouts.high, self.updates.high) < bound

    @property
    def decisive(self) -> bool:
        """Whether there are enough seeds and some spread between them."""
        have_intervals = has_interval(self.rollouts) and has_interval(self.updates)
        # Two seeds may agree by chance, because success is a multiple of 1 / samples.
        return have_intervals and self.rollouts.n >= FEWEST_SEEDS


def compare(
    runs: Runs,
    arm: str,
    baseline: str,
    *,
    column: str = HELDOUT_COLUMN,
    level: float = LEVEL,
    family: int | None = None,
) -> list[Comparison]:
    """Compare two arms at every rate; intervals hold for `family` comparisons together.

    By default the family is the number of rates.
    """
    all_rates = learning_rates(runs)
    level_each = bonferroni_level(level, family or len(all_rates))
    comparisons = []
    for rate in all_rates:
        rollout_differences, update_differences = (
            differences(runs, arm, baseline, rate, cost, column) for cost in ("rollouts", "updates")
        )
        if rollout_differences:
            means = (
                paired_mean(rollout_differences, level_each),
                paired_mean(update_differences, level_each),
            )
            comparisons.append(
                Comparison(
                    arm, baseline, rate, *means, _made_identical_runs(runs, arm, baseline, rate)
                )
            )
    return comparisons


def paired_mean(values: Sequence[float], level: float) -> SeedMean:
    """The mean of differences between paired runs; without spread it has no interval."""
    mean = student_mean(values, level)
    # No width and no evidence: treated as if it had no interval (see the module docstring).
    if mean.n > 1 and max(values) - min(values) < TOLERANCE:
        return replace(mean, low=math.nan, high=math.nan, detectable=math.nan, p=1.0)
    return mean


def has_interval(mean: SeedMean) -> bool:
    """Whether the mean has an interval: one seed has none, nor has a difference without spread."""
    return math.isfinite(mean.low)


def differences(
    runs: Runs, arm: str, baseline: str, rate: float, cost: Cost, column: str = HELDOUT_COLUMN
) -> list[float]:
    """Success of `arm` minus that of `baseline`, for every seed and start that both have."""
    pair_differences = (
        difference_at_equal_cost(arm_curve, baseline_curve, cost, column)
        for arm_curve, baseline_curve in _pairs(runs, arm, baseline, rate)
    )
    return [difference for difference in pair_differences if difference is not None]


def difference_at_equal_cost(
    arm_curve: Sequence[Record], baseline_curve: Sequence[Record], cost: Cost, column: str
) -> float | None:
    """Success of one run minus that of another; None if either has no evaluation.

    Both curves are read where the cheaper run ended.
    """
    equal_cost = min(arm_curve[-1][cost], baseline_curve[-1][cost])
    arm_success = interpolate_at(arm_curve, cost, equal_cost, column)
    baseline_success = interpolate_at(baseline_curve, cost, equal_cost, column)
    if arm_success is None or baseline_success is None:
        return None
    return arm_success - baseline_success


def _pairs(
    runs: Runs, arm: str, baseline: str, rate: float
) -> list[tuple[list[Record], list[Record]]]:
    """The two curves of every seed that both arms have, if they began with the same weights."""
    arm_curves, baseline_curves = (
        {
            run_key.seed: curve
            for run_key, curve in runs.items()
            if (run_key.arm, run_key.rate) == (arm_name, rate)
        }
        for arm_name in (arm, baseline)
    )
    pairs = [
        (arm_curves[seed], baseline_curves[seed])
        for seed in sorted(arm_curves.keys() & baseline_curves.keys())
    ]
    return [
        (curve, baseline_curve)
        for curve, baseline_curve in pairs
        if curve[0].get("start") == baseline_curve[0].get("start")
    ]


def _made_identical_runs(runs: Runs, arm: str, baseline: str, rate: float) -> bool:
    """Whether everything that was measured is equal, apart from times."""
    return all(
        len(curve) == len(baseline_curve)
        and all(
            _same_record(record, other_record)
            for record, other_record in zip(curve, baseline_curve, strict=True)
        )
        for curve, baseline_curve in _pairs(runs, arm, baseline, rate)
    )


def _same_record(record: Record, other_record: Record) -> bool:
    for column in record.keys() | other_record.keys():
        value, other_value = record.get(column), other_record.get(column)
        # Times differ between any two runs, and texts such as the origin are not measured.
        if column.endswith("seconds") or isinstance(value or other_value, str):
            continue
        if value is None or other_value is None:
            if value is not other_value:
                return False
        elif not math.isclose(value, other_value, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            return False
    return True


def interpolate_at(
    curve: Sequence[Record], cost: Cost, cost_value: float, column: str
) -> float | None:
    """The column at this cost, linear between evaluations; None without any evaluation."""
    evaluations = [
        (record[cost], record[column]) for record in curve if record.get(column) is not None
    ]
    if not evaluations:
        return None
    costs, values = zip(*evaluations, strict=True)
    return float(np.interp(cost_value, costs, values))


def judge_comparisons(
    comparisons: Sequence[Comparison], direction: Direction, margin: float
) -> Verdict:
    """The verdict over all rates; `margin` > 0 is the smallest difference that would matter."""
    if direction == "better":
        replicated = any(comparison.above(0) for comparison in comparisons)
        excluded = bool(comparisons) and all(comparison.below(margin) for comparison in comparisons)
    else:
        replicated = any(comparison.below(0) for comparison in comparisons)
        excluded = bool(comparisons) and all(
            comparison.above(-margin) for comparison in comparisons
        )
    if replicated:
        return "replicated"
    return "not replicated" if excluded else "inconclusive"


def describe_comparison(comparison: Comparison) -> str:
    """One comparison as a sentence."""
    at_rollouts, at_updates = comparison.rollouts, comparison.updates
    rate_phrase, seeds_phrase = f"at lr {comparison.rate:g}", format_count(at_rollouts.n, "seed")
    if comparison.identical_runs:
        return (
            f"{rate_phrase} both arms made the same runs over {seeds_phrase}: the option had no "
            "effect"
        )
    remark = ""
    if has_interval(at_rollouts):
        remark = f" (smallest detectable difference: {100 * at_rollouts.detectable:.1f})"
    remark += describe_missing_spread(comparison)
    return (
        f"{rate_phrase} {format_points(at_rollouts)} at equal rollouts and "
        f"{format_points(at_updates)} at equal updates over {seeds_phrase}{remark}"
    )


def describe_missing_spread(comparison: Comparison) -> str:
    """Why several seeds have no interval; empty if they have one."""
    at_rollouts, at_updates = comparison.rollouts, comparison.updates
    if at_rollouts.n > 1 and not (has_interval(at_rollouts) and has_interval(at_updates)):
        return ", the same at every seed: without spread there is no verdict"
    return ""


def format_points(mean: SeedMean) -> str:
    """The mean in percentage points with its interval: "+1.2 points [-0.3, +2.7]"."""
    interval = f" [{100 * mean.low:+.1f}, {100 * mean.high:+.1f}]" if has_interval(mean) else ""
    return f"{100 * mean.value:+.1f} points{interval}"


def as_number(name: str, mean: SeedMean, unit: str = "share") -> Number:
    """The mean as a named number of a finding; without an interval it has no bounds."""
    low, high = (mean.low, mean.high) if has_interval(mean) else (None, None)
    return Number(name, mean.value, low, high, unit=unit)
