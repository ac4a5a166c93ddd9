"""The curve of a finished run: one record per iteration, read from its run folder.

`rollouts` and `updates` are counted from the start of the run. Held-out success is in the column
`heldout` for the first evaluation setting, and in columns such as `heldout@0.6/0.95` for the
others; success on the benchmarks of `evaluate.benchmarks` is in columns such as
`heldout@1/1 on math500`. A value that was not measured in an iteration is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

from counterpoise.config.evaluation_settings import EvaluationSetting, group_by_setting
from counterpoise.errors import PoiseError
from counterpoise.lab.experiments.design import RunKey
from counterpoise.statistics.finding import Record, Records
from counterpoise.store.folder import RunFolder

HELDOUT_COLUMN = "heldout"
# Copied from metrics.jsonl.
METRIC_COLUMNS = (
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
Runs = dict[RunKey, list[Record]]  # run -> its curve, in order of iterations
Range = tuple[float, float]  # the values that a quantity can take
SHARE_RANGE: Range = (0.0, 1.0)
AMOUNT_RANGE: Range = (0.0, math.inf)  # counts, lengths, nats, norms, seconds
ANY_RANGE: Range = (-math.inf, math.inf)


def read_curve(folder: RunFolder) -> list[Record]:
    """The curve of one run; iteration 0 is the policy before training."""
    metrics_lines = folder.read("metrics")
    # Rollouts and updates are added up from the start: a lost line would shift all that follow.
    if [line["iteration"] for line in metrics_lines] != list(range(1, len(metrics_lines) + 1)):
        raise PoiseError(f"{folder.path} has lost lines of metrics.jsonl: remove it to train again")
    plans = {line["iteration"]: line["describe"] for line in folder.read("plans")}
    heldout_success = _heldout_success(folder) | _benchmark_success(folder)
    evaluation_seconds = _evaluation_seconds(folder)
    updates = list(accumulate((metrics_line["steps"] for metrics_line in metrics_lines), initial=0))
    rollouts = list(
        accumulate((metrics_line["rollouts"] for metrics_line in metrics_lines), initial=0)
    )
    curve: list[Record] = []
    # The empty first line is iteration 0: nothing was trained, but there may be an evaluation.
    for iteration, metrics_line in enumerate([{}, *metrics_lines]):
        plan: Mapping[str, Any] = plans.get(iteration, {})
        curve.append(
            {
                "iteration": iteration,
                "updates": updates[iteration],
                "rollouts": rollouts[iteration],
                **{column: heldout_success[column].get(iteration) for column in heldout_success},
                **{column: metrics_line.get(column) for column in METRIC_COLUMNS},
                "evaluate_seconds": evaluation_seconds.get(iteration),
                "dropped": metrics_line.get("dropped_surplus", 0)
                + metrics_line.get("dropped_aged", 0),
                "split": plan.get("split_share"),
                "largest_sum": plan.get("max_abs_group_advantage_sum"),
                "cross_advantage_ratio": plan.get("cross_advantage_ratio"),
                "rarer_sign_share": _rarer_sign_share(plan.get("positive_share")),
            }
        )
    return curve


def _rarer_sign_share(positive_share: float | None) -> float | None:
    """The share of the rarer sign of advantage among the rows with signal."""
    return None if positive_share is None else min(positive_share, 1 - positive_share)


def _heldout_success(folder: RunFolder) -> dict[str, dict[int, float]]:
    """Column -> {iteration: held-out success}."""
    success_by_column: dict[str, dict[int, float]] = {HELDOUT_COLUMN: {}}
    evaluations = group_by_setting(folder.read("evaluations"))
    for setting_index, (setting, evaluation_lines) in enumerate(evaluations.items()):
        column = f"{HELDOUT_COLUMN}@{setting}" if setting_index else HELDOUT_COLUMN
        success_by_column[column] = {
            evaluation["iteration"]: evaluation["mean"] for evaluation in evaluation_lines
        }
    return success_by_column


def benchmark_column(setting: EvaluationSetting, benchmark: str) -> str:
    """The column of the success on a benchmark.

    Example:
        >>> benchmark_column(EvaluationSetting(0.6, 0.95), "math500")
        'heldout@0.6/0.95 on math500'
    """
    return f"{HELDOUT_COLUMN}@{setting} on {benchmark}"


def _benchmark_success(folder: RunFolder) -> dict[str, dict[int, float]]:
    """Column -> {iteration: success on the benchmark}."""
    success_by_column: dict[str, dict[int, float]] = {}
    for line in folder.read("benchmarks"):
        setting = EvaluationSetting(line["temperature"], line["top_p"])
        column = benchmark_column(setting, line["benchmark"])
        success_by_column.setdefault(column, {})[line["iteration"]] = line["mean"]
    return success_by_column


def _evaluation_seconds(folder: RunFolder) -> dict[int, float]:
    """Iteration -> seconds of all its evaluations."""
    seconds: dict[int, float] = {}
    for evaluation in (*folder.read("evaluations"), *folder.read("benchmarks")):
        iteration = evaluation["iteration"]
        seconds[iteration] = seconds.get(iteration, 0.0) + evaluation.get("evaluate_seconds", 0.0)
    return seconds


def run_seconds(curve: list[Record]) -> float:
    """Seconds of all iterations and evaluations of a run, without loading."""
    columns = ("iteration_seconds", "evaluate_seconds")
    return sum(record.get(column) or 0.0 for record in curve for column in columns)


def group_by_run(records: Records) -> Runs:
    """Split the records of a table into runs."""
    runs: Runs = {}
    for record in records:
        if record["iteration"] is not None:
            run_key = RunKey(record["arm"], record["rate"], record["seed"])
            runs.setdefault(run_key, []).append(record)
    return {
        run_key: sorted(curve, key=lambda record: record["iteration"])
        for run_key, curve in runs.items()
    }


def learning_rates(runs: Runs) -> list[float]:
    """The learning rates of all runs, in ascending order."""
    return sorted({run_key.rate for run_key in runs})


def arm_names(runs: Runs) -> list[str]:
    """The arms of all runs, in order of first appearance."""
    return list(dict.fromkeys(run_key.arm for run_key in runs))


def values_by_seed(
    runs: Runs, arm: str, rate: float, measure: Callable[[list[Record]], float | None]
) -> dict[int, float]:
    """Seed -> a number computed from its curve; seeds where it is None are left out."""
    value_by_seed = {
        run_key.seed: measure(curve)
        for run_key, curve in runs.items()
        if (run_key.arm, run_key.rate) == (arm, rate)
    }
    return {seed: value for seed, value in value_by_seed.items() if value is not None}


def value_range(column: str) -> Range:
    """The values that a column can take; intervals of its mean are cut to them."""
    if column == "cross_advantage_ratio":
        return ANY_RANGE
    is_share = column in SHARE_COLUMNS or column.startswith(HELDOUT_COLUMN)
    return SHARE_RANGE if is_share else AMOUNT_RANGE


def last_value(column: str) -> Callable[[list[Record]], float | None]:
    """A measure: the last known value of a column."""
    return lambda curve: next(
        (record[column] for record in reversed(curve) if record.get(column) is not None), None
    )


def mean_over_run(column: str) -> Callable[[list[Record]], float | None]:
    """A measure: the mean of a column over the iterations where it is known."""

    def mean_of_known_values(curve: list[Record]) -> float | None:
        values = [record[column] for record in curve if record.get(column) is not None]
        return sum(values) / len(values) if values else None

    return mean_of_known_values
