"""The results of every arm and rate: success, differences, collapses, costs, mechanism.

For every arm and rate: held-out success at the end at every setting, with an interval cut to [0, 1]
(seed_means.py); the difference to the baseline paired by seed at equal rollouts and at equal
updates, with intervals that hold for all arms and rates together and are not cut; and beside each
the smallest difference that the seeds could have shown. The p-value of an arm is the larger one of
its two costs, adjusted by Holm over arms and rates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from counterpoise.lab.experiments.compare import Comparison, as_number, compare, has_interval
from counterpoise.lab.experiments.curves import (
    HELDOUT_COLUMN,
    SHARE_RANGE,
    Runs,
    last_value,
    values_by_seed,
)
from counterpoise.lab.experiments.experiment_file import Experiment
from counterpoise.lab.experiments.measures import MEASURES, has_collapsed, sign_test, wilson
from counterpoise.lab.experiments.seed_means import mean_over_seeds
from counterpoise.statistics.finding import Number
from counterpoise.statistics.student import SeedMean, holm_adjust


@dataclass(frozen=True, slots=True)
class ArmResult:
    """The result of one arm at one learning rate."""

    arm: str
    rate: float
    seeds: int
    success: dict[str, SeedMean]  # column of held-out success -> final success, cut to [0, 1]
    vs_baseline: dict[str, Comparison]  # by the same columns; empty for the baseline itself
    p_value: float  # adjusted by Holm; nan for the baseline
    collapsed_runs: int  # of `seeds`
    collapse_p_value: float  # sign test against the baseline, not adjusted; nan without a pair
    measures: dict[str, SeedMean]  # name of a measure -> its mean, where it was measured


def arm_results(runs: Runs, experiment: Experiment) -> list[ArmResult]:
    """The results of all arms at all rates that have finished runs."""
    results = [
        result
        for rate in experiment.design.rates
        for arm in experiment.design.arms
        if (result := _arm_result(runs, experiment, arm, rate))
    ]
    # Holm adjusts over all arms and rates that were compared; the baseline has no p-value.
    compared_indices = [
        index for index, result in enumerate(results) if not math.isnan(result.p_value)
    ]
    adjusted = holm_adjust([results[index].p_value for index in compared_indices])
    adjusted_by_index = dict(zip(compared_indices, adjusted, strict=True))
    return [
        replace(result, p_value=adjusted_by_index[index]) if index in adjusted_by_index else result
        for index, result in enumerate(results)
    ]


def _arm_result(runs: Runs, experiment: Experiment, arm: str, rate: float) -> ArmResult | None:
    curves = [
        curve for run_key, curve in runs.items() if (run_key.arm, run_key.rate) == (arm, rate)
    ]
    if not curves:
        return None
    success, vs_baseline = {}, {}
    for column in experiment.heldout_columns:
        if final_values := list(values_by_seed(runs, arm, rate, last_value(column)).values()):
            success[column] = mean_over_seeds(final_values, SHARE_RANGE)
        for comparison in compare_with_baseline(runs, experiment, arm, column):
            if comparison.rate == rate:
                vs_baseline[column] = comparison
    main_comparison = vs_baseline.get(HELDOUT_COLUMN)
    measure_means = {
        measure_name: mean_over_seeds(list(values.values()), measure.value_range)
        for measure_name, measure in MEASURES.items()
        if (values := values_by_seed(runs, arm, rate, measure.compute))
        and (len(values) == len(curves) or not measure.needs_all_runs)
    }
    # A hypothesis must hold at both costs, so the larger p-value counts.
    p_value = (
        max(main_comparison.rollouts.p, main_comparison.updates.p)
        if main_comparison and main_comparison.rollouts.n > 1
        else math.nan
    )
    collapses = _collapses_by_seed(runs, experiment, arm, rate)
    baseline_collapses = _collapses_by_seed(runs, experiment, experiment.baseline, rate)
    # The sign test pairs runs by seed and start, as the comparisons do.
    shared_seeds = collapses.keys() & baseline_collapses.keys()
    arm_only_collapses = sum(collapses[seed] > baseline_collapses[seed] for seed in shared_seeds)
    baseline_only_collapses = sum(
        collapses[seed] < baseline_collapses[seed] for seed in shared_seeds
    )
    return ArmResult(
        arm,
        rate,
        len(curves),
        success,
        vs_baseline,
        p_value,
        sum(collapses.values()),
        math.nan
        if arm == experiment.baseline or not shared_seeds
        else sign_test(arm_only_collapses, baseline_only_collapses),
        measure_means,
    )


def _collapses_by_seed(
    runs: Runs, experiment: Experiment, arm: str, rate: float
) -> dict[tuple[int, str | None], bool]:
    """(seed, start) -> whether that run collapsed."""
    collapse_thresholds = (
        experiment.options.collapse_of_start,
        experiment.options.collapse_below_best,
    )
    curves = {
        run_key.seed: curve
        for run_key, curve in runs.items()
        if (run_key.arm, run_key.rate) == (arm, rate)
    }
    return {
        (seed, curve[0].get("start")): has_collapsed(curve, *collapse_thresholds)
        for seed, curve in curves.items()
    }


def compare_with_baseline(
    runs: Runs, experiment: Experiment, arm: str, column: str = HELDOUT_COLUMN
) -> list[Comparison]:
    """`arm` against the baseline at every rate; intervals hold for all arms and rates together."""
    if arm == experiment.baseline:
        return []
    level, family = experiment.options.level, experiment.family
    return compare(runs, arm, experiment.baseline, column=column, level=level, family=family)


def named_numbers(results: list[ArmResult], experiment: Experiment) -> tuple[Number, ...]:
    """All numbers of the experiment by name, those that decide a hypothesis first."""
    numbers: list[Number] = []
    hypothesis_arms = [hypothesis.arm for hypothesis in experiment.hypotheses]
    deciding_first = sorted(
        results,
        key=lambda result: (
            hypothesis_arms.index(result.arm)
            if result.arm in hypothesis_arms
            else len(hypothesis_arms)
        ),
    )
    for result in deciding_first:
        for column, setting in experiment.heldout_columns.items():
            if column in result.vs_baseline:
                numbers += _difference_numbers(result, result.vs_baseline[column], setting)
    for result in results:
        prefix = f"{result.arm}, lr {result.rate:g}"
        for column, mean in result.success.items():
            numbers.append(
                as_number(f"{prefix}: success at {experiment.heldout_columns[column]}", mean)
            )
        low, high = wilson(result.collapsed_runs, result.seeds)
        collapsed_share = result.collapsed_runs / result.seeds
        numbers.append(
            Number(f"{prefix}: runs that collapsed", collapsed_share, low, high, unit="share")
        )
        for measure_name, mean in result.measures.items():
            unit = "share" if MEASURES[measure_name].percent else ""
            numbers.append(as_number(f"{prefix}: {MEASURES[measure_name].label}", mean, unit))
    return tuple(numbers)


def _difference_numbers(result: ArmResult, comparison: Comparison, setting: str) -> list[Number]:
    number_name = f"{result.arm} minus {comparison.baseline}, lr {result.rate:g}, at {setting}"
    numbers = [
        as_number(f"{number_name}, equal rollouts", comparison.rollouts),
        as_number(f"{number_name}, equal updates", comparison.updates),
    ]
    if has_interval(comparison.rollouts):
        number_name += ": smallest difference these seeds would show"
        numbers.append(Number(number_name, comparison.rollouts.detectable, unit="share"))
    return numbers
