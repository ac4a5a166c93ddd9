"""What a finished run of an arm came to: one record an iteration, from its folder.

`rollouts` and `updates` are counted from the start of the run: what the run had cost by then.
Held-out success stands in `heldout` for the first evaluation setting, and in `heldout@0.6/0.95` and
the like for the others. A value that was not measured in an iteration is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

from counterpoise.config.evaluation_settings import by_setting
from counterpoise.lab.experiments.design import RunKey
from counterpoise.statistics.finding import Record, Records
from counterpoise.store.folder import RunFolder

HELDOUT_COLUMN = "heldout"
METRIC_COLUMNS = (  # taken from metrics.jsonl as they are
    "success", "mixed_groups", "response_length", "truncated_share", "entropy", "grad_norm",
    "clipped_share", "mean_ratio", "cancellation", "flipped", "boosted_positive",
    "boosted_negative", "positive_share", "batch_rows", "rows_without_signal", "iteration_seconds",
)  # fmt: skip
SHARE_COLUMNS = {
    "success", "mixed_groups", "truncated_share", "clipped_share", "cancellation", "flipped",
    "boosted_positive", "boosted_negative", "positive_share", "rarer_sign_share", "split",
}  # fmt: skip
DOSE_COLUMNS = (
    *METRIC_COLUMNS,
    "split",
    "largest_sum",
    "cross_advantage_ratio",
    "rarer_sign_share",
)
Runs = dict[RunKey, list[Record]]  # the curve of every run, in order
Range = tuple[float, float]  # the values that a quantity can take
SHARE_RANGE: Range = (0.0, 1.0)
AMOUNT_RANGE: Range = (0.0, math.inf)  # counts, lengths, nats, norms, seconds
ANY_RANGE: Range = (-math.inf, math.inf)


def read_curve(folder: RunFolder) -> list[Record]:
    """Iteration 0 is the policy before training."""
    lines = folder.read("metrics")
    plans = {line["iteration"]: line["describe"] for line in folder.read("plans")}
    judged, seconds = _heldout(folder), _judging(folder)
    updates = list(accumulate((line["steps"] for line in lines), initial=0))
    rollouts = list(accumulate((line["rollouts"] for line in lines), initial=0))
    curve: list[Record] = []
    for i, line in enumerate([{}, *lines]):
        plan: Mapping[str, Any] = plans.get(i, {})
        curve.append(
            {
                "iteration": i,
                "updates": updates[i],
                "rollouts": rollouts[i],
                **{name: judged[name].get(i) for name in judged},
                **{name: line.get(name) for name in METRIC_COLUMNS},
                "evaluate_seconds": seconds.get(i),
                "dropped": line.get("dropped_surplus", 0) + line.get("dropped_aged", 0),
                "split": plan.get("split_share"),
                "largest_sum": plan.get("max_abs_group_advantage_sum"),
                "cross_advantage_ratio": plan.get("cross_advantage_ratio"),
                "rarer_sign_share": _rarer_sign_share(plan.get("positive_share")),
            }
        )
    return curve


def _rarer_sign_share(positive_share: float | None) -> float | None:
    """Of a batch's rows with signal, the share of the sign that fewer of them have."""
    return None if positive_share is None else min(positive_share, 1 - positive_share)


def _heldout(folder: RunFolder) -> dict[str, dict[int, float]]:
    """Column -> iteration -> held-out success."""
    found: dict[str, dict[int, float]] = {HELDOUT_COLUMN: {}}
    for place, (setting, lines) in enumerate(by_setting(folder.read("evaluations")).items()):
        column = f"{HELDOUT_COLUMN}@{setting}" if place else HELDOUT_COLUMN
        found[column] = {line["iteration"]: line["mean"] for line in lines}
    return found


def _judging(folder: RunFolder) -> dict[int, float]:
    """Iteration -> seconds that its evaluations took together."""
    found: dict[int, float] = {}
    for line in folder.read("evaluations"):
        at = line["iteration"]
        found[at] = found.get(at, 0.0) + line.get("evaluate_seconds", 0.0)
    return found


def run_seconds(curve: list[Record]) -> float:
    """What a run took, its start apart: iterations and evaluations."""
    columns = ("iteration_seconds", "evaluate_seconds")
    return sum(r.get(column) or 0.0 for r in curve for column in columns)


def group_by_run(records: Records) -> Runs:
    """Records of many runs, as a table holds them, run by run."""
    runs: Runs = {}
    for r in records:
        if r["iteration"] is not None:
            runs.setdefault(RunKey(r["arm"], r["rate"], r["seed"]), []).append(r)
    return {key: sorted(curve, key=lambda r: r["iteration"]) for key, curve in runs.items()}


def learning_rates(runs: Runs) -> list[float]:
    return sorted({key.rate for key in runs})


def arm_names(runs: Runs) -> list[str]:
    return list(dict.fromkeys(key.arm for key in runs))


def values_by_seed(
    runs: Runs, arm: str, rate: float, what: Callable[[list[Record]], float | None]
) -> dict[int, float]:
    """seed -> a number of its run; seeds where it is None are left out."""
    found = {key.seed: what(c) for key, c in runs.items() if (key.arm, key.rate) == (arm, rate)}
    return {seed: value for seed, value in found.items() if value is not None}


def value_range(column: str) -> Range:
    if column == "cross_advantage_ratio":
        return ANY_RANGE
    return (
        SHARE_RANGE
        if column in SHARE_COLUMNS or column.startswith(HELDOUT_COLUMN)
        else AMOUNT_RANGE
    )


def last_value(column: str) -> Callable[[list[Record]], float | None]:
    """The last known value."""
    return lambda curve: next(
        (r[column] for r in reversed(curve) if r.get(column) is not None), None
    )


def mean_over_run(column: str) -> Callable[[list[Record]], float | None]:
    """Over the iterations where it is known."""

    def over(curve: list[Record]) -> float | None:
        known = [r[column] for r in curve if r.get(column) is not None]
        return sum(known) / len(known) if known else None

    return over
