"""Measures of a single run besides its success: costs, waste, stability, mechanism.

    collapsed             the last held-out success is below a fraction of the first, or far below
                          the best; the experiment file fixes both thresholds beforehand
    sampled per update    rollouts / optimizer steps: what an update costs
    dropped per update    rollouts that RB dropped (surplus, or too old) / optimizer steps
    silent per update     rollouts without signal: all of their group right, or all wrong
    gain per 10,000       held-out success gained per 10,000 sampled rollouts
    gain per 100          ... per 100 optimizer steps. A run with fewer than 10,000 rollouts, or
                          100 steps, has no such gain: it would be an extrapolation
    seconds               of an iteration; runs that trained beside others are slower

Near collapse the final values of runs lie far apart, and means over seeds say little. Collapses are
therefore counted seed by seed, with the sign test over the seeds where exactly one arm collapsed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from counterpoise.lab.experiments.curves import (
    AMOUNT_RANGE,
    ANY_RANGE,
    HELDOUT_COLUMN,
    SHARE_RANGE,
    Range,
    last_value,
    mean_over_run,
)
from counterpoise.statistics import prompt_intervals
from counterpoise.statistics.finding import Record

WARM_UP_ITERATIONS = 2
ROWS_WITHOUT_SIGNAL = "rows_without_signal"  # a column of the curves
Curve = list[Record]
Measure = Callable[[Curve], float | None]


class MeasureSpec(NamedTuple):
    """A measure with its label and the values it can take."""

    label: str
    compute: Measure
    value_range: Range = AMOUNT_RANGE
    percent: bool = False  # shown in percent
    # Left out unless all runs of the arm have it: the seeds that have it may be a biased choice.
    needs_all_runs: bool = False


def heldout_values(curve: Sequence[Record], column: str = HELDOUT_COLUMN) -> list[float]:
    """The held-out success of every evaluation, in order."""
    return [record[column] for record in curve if record.get(column) is not None]


def has_collapsed(curve: Sequence[Record], of_start: float, below_best: float) -> bool:
    """Whether a run ended far below its start or its best.

    Example:
        >>> curve = [{"heldout": h} for h in (0.4, 0.7, 0.45)]
        >>> has_collapsed(curve, of_start=0.5, below_best=0.2)   # 0.45 is 0.25 below its best
        True
    """
    values = heldout_values(curve)
    return bool(values) and (
        values[-1] < of_start * values[0] or values[-1] < max(values) - below_best
    )


def _per_cost(column: str, cost: str) -> Measure:
    """The total of a column at the end of the run, per unit of cost."""

    def total_per_cost(curve: Curve) -> float | None:
        # This column counts per iteration, the others from the start of the run.
        if column == ROWS_WITHOUT_SIGNAL:
            total = sum(record.get(column) or 0 for record in curve)
        else:
            total = curve[-1][column]
        return total / curve[-1][cost] if curve[-1][cost] else None

    return total_per_cost


def _gain_per(cost: str, unit: int) -> Measure:
    """The held-out success gained per `unit` of cost."""

    def gain(curve: Curve) -> float | None:
        # A run that spent less than one unit has no gain: it would be an extrapolation.
        values, spent = heldout_values(curve), curve[-1][cost]
        return unit * (values[-1] - values[0]) / spent if values and spent >= unit else None

    return gain


def _usual_seconds(curve: Curve) -> float | None:
    """The median over a run. Its first iterations load and compile."""
    seconds = [record["iteration_seconds"] for record in curve if record.get("iteration_seconds")]
    return statistics.median(seconds[WARM_UP_ITERATIONS:] or seconds) if seconds else None


MEASURES = {
    "mean_success": MeasureSpec(
        "held-out success along the run, mean", mean_over_run(HELDOUT_COLUMN), SHARE_RANGE, True
    ),
    "updates": MeasureSpec("updates", last_value("updates")),
    "per_update": MeasureSpec("sampled rollouts per update", _per_cost("rollouts", "updates")),
    "dropped": MeasureSpec("rollouts dropped per update", _per_cost("dropped", "updates")),
    "silent": MeasureSpec(
        "rollouts without signal per update", _per_cost(ROWS_WITHOUT_SIGNAL, "updates")
    ),
    "gain_rollouts": MeasureSpec(
        "success gained per 10,000 sampled rollouts",
        _gain_per("rollouts", 10_000),
        ANY_RANGE,
        True,
        True,
    ),
    "gain_updates": MeasureSpec(
        "success gained per 100 updates", _gain_per("updates", 100), ANY_RANGE, True, True
    ),
    "cancellation": MeasureSpec("cancellation index", mean_over_run("cancellation"), SHARE_RANGE),
    "flipped": MeasureSpec(
        "tokens moved against their advantage", mean_over_run("flipped"), SHARE_RANGE, True
    ),
    "split": MeasureSpec("share of groups split", mean_over_run("split"), SHARE_RANGE, True),
    "largest_sum": MeasureSpec(
        "largest absolute sum of a group's advantages in a step", mean_over_run("largest_sum")
    ),
    "entropy": MeasureSpec("entropy at the end, nats", last_value("entropy")),
    "length": MeasureSpec("response length at the end", last_value("response_length")),
    "cross": MeasureSpec(
        "cross-advantage ratio (eq. 14)", mean_over_run("cross_advantage_ratio"), ANY_RANGE
    ),
    "rarer": MeasureSpec(
        "share of the rarer sign", mean_over_run("rarer_sign_share"), SHARE_RANGE, True
    ),
    "seconds": MeasureSpec("seconds of an iteration", _usual_seconds),
}


def sign_test(more: int, fewer: int) -> float:
    """Two-sided p-value of a split at least this uneven, if both sides were equally likely.

    Example:
        >>> sign_test(6, 1), sign_test(3, 3)
        (0.125, 1.0)
    """
    pairs = more + fewer
    tail = sum(math.comb(pairs, count) for count in range(min(more, fewer) + 1)) / 2**pairs
    return min(1.0, 2 * tail)


def wilson(hits: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share of `n`; also valid at 0 and at n.

    Example:
        >>> [round(bound, 3) for bound in wilson(0, 16)]
        [0.0, 0.194]
    """
    return prompt_intervals.wilson_interval(hits / n, n, z)
