"""What is read off one run beside its success: costs, waste, stability, mechanism.

    collapsed             its last held-out success is below a part of its first, or far below its
                          best; how far is said in the experiment file beforehand
    sampled per update    rollouts / optimizer steps: what an update costs
    dropped per update    rollouts that RB gave up (surplus, or too old) / optimizer steps
    silent per update     rollouts without signal: all of their group right, or all wrong
    gain per 10,000       held-out success gained for 10,000 sampled rollouts
    gain per 100          ... for 100 optimizer steps; of a run that spent less, neither: it would
                          be a guess at what comes next

Near collapse the ends of runs lie far apart, and means over seeds say little: collapses are counted
seed by seed, by the sign test over the seeds where one arm collapsed and the other did not.
"""

from __future__ import annotations

import math
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

Curve = list[Record]
Measure = Callable[[Curve], float | None]


class MeasureSpec(NamedTuple):
    label: str
    compute: Measure
    value_range: Range = AMOUNT_RANGE
    percent: bool = False  # how it is shown
    needs_all_runs: bool = (
        False  # left out of an arm unless all its runs have it: no choice of seeds
    )


def heldout_values(curve: Sequence[Record], column: str = HELDOUT_COLUMN) -> list[float]:
    """Its evaluations in order."""
    return [r[column] for r in curve if r.get(column) is not None]


def has_collapsed(curve: Sequence[Record], of_start: float, below_best: float) -> bool:
    """
    Example:
        >>> curve = [{"heldout": h} for h in (0.4, 0.7, 0.45)]
        >>> collapsed(curve, of_start=0.5, below_best=0.2)   # 0.45 is 0.25 below its best
        True
    """
    found = heldout_values(curve)
    return bool(found) and (found[-1] < of_start * found[0] or found[-1] < max(found) - below_best)


def _per(column: str, cost: str) -> Measure:
    """What had come together by the end, for each unit of cost."""

    def of(curve: Curve) -> float | None:
        whole = (
            sum(r.get(column) or 0 for r in curve)
            if column == ROWS_WITHOUT_SIGNAL
            else curve[-1][column]
        )
        return whole / curve[-1][cost] if curve[-1][cost] else None

    return of


def _gain(cost: str, unit: int) -> Measure:
    def of(curve: Curve) -> float | None:
        found, spent = heldout_values(curve), curve[-1][cost]
        return unit * (found[-1] - found[0]) / spent if found and spent >= unit else None

    return of


ROWS_WITHOUT_SIGNAL = (
    "rows_without_signal"  # of one iteration; the other columns count from the start
)
MEASURES = {
    "along": MeasureSpec(
        "held-out success along the run, mean", mean_over_run(HELDOUT_COLUMN), SHARE_RANGE, True
    ),
    "updates": MeasureSpec("updates", last_value("updates")),
    "per_update": MeasureSpec("sampled rollouts per update", _per("rollouts", "updates")),
    "dropped": MeasureSpec("rollouts dropped per update", _per("dropped", "updates")),
    "silent": MeasureSpec(
        "rollouts without signal per update", _per(ROWS_WITHOUT_SIGNAL, "updates")
    ),
    "gain_rollouts": MeasureSpec(
        "success gained per 10,000 sampled rollouts",
        _gain("rollouts", 10_000),
        ANY_RANGE,
        True,
        True,
    ),
    "gain_updates": MeasureSpec(
        "success gained per 100 updates", _gain("updates", 100), ANY_RANGE, True, True
    ),
    "cancellation": MeasureSpec("cancellation index", mean_over_run("cancellation"), SHARE_RANGE),
    "flipped": MeasureSpec(
        "tokens moved against their advantage", mean_over_run("flipped"), SHARE_RANGE, True
    ),
    "split": MeasureSpec("share of groups split", mean_over_run("split"), SHARE_RANGE, True),
    "largest_sum": MeasureSpec(
        "largest advantage sum of a group's part", mean_over_run("largest_sum")
    ),
    "entropy": MeasureSpec("entropy at the end, nats", last_value("entropy")),
    "length": MeasureSpec("response length at the end", last_value("response_length")),
    "cross": MeasureSpec(
        "cross-advantage ratio (eq. 14)", mean_over_run("cross_advantage_ratio"), ANY_RANGE
    ),
    "rarer": MeasureSpec(
        "share of the rarer sign", mean_over_run("rarer_sign_share"), SHARE_RANGE, True
    ),
}


def sign_test(more: int, fewer: int) -> float:
    """P(so uneven a split of the pairs that differ, were both sides as likely), both ways.

    Example:
        >>> sign_test(6, 1), sign_test(3, 3)
        (0.125, 1.0)
    """
    n = more + fewer
    tail = sum(math.comb(n, k) for k in range(min(more, fewer) + 1)) / 2**n
    return min(1.0, 2 * tail)


def wilson(hits: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share, also at 0 and n of n.

    Example:
        >>> [round(x, 3) for x in wilson(0, 16)]
        [0.0, 0.194]
    """
    return prompt_intervals.wilson(hits / n, n, z)
