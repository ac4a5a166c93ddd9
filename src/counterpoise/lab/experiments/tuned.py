"""Tuned against tuned: every arm at the learning rate that is best for it, judged on other seeds.

    half A = seeds at even positions, half B = seeds at odd positions of the design
    rate_A(arm) = the rate with the highest mean final success over the seeds of A; rate_B likewise
    difference of a seed in B = success of the arm at rate_A(arm)
                              - success of the baseline at rate_A(baseline)
    difference of a seed in A = the same with rate_B

A rate that was chosen and judged on the same seeds would look better than it is, and more so for an
arm that was tried at more rates. Cross-fitting avoids this and still uses every seed: the
differences of both halves are averaged, with Student's t over seeds. Costs are read as in
compare.py: at the fewer rollouts, and at the fewer updates, that either run of a pair spent. A
seed whose runs began with different weights takes no part, since neither its rates nor its arms
can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from counterpoise.errors import format_count
from counterpoise.lab.experiments.compare import (
    Comparison,
    Cost,
    as_number,
    describe_missing_spread,
    difference_at_equal_cost,
    format_points,
    paired_mean,
)
from counterpoise.lab.experiments.curves import HELDOUT_COLUMN, Runs, last_value
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.experiment_file import Experiment
from counterpoise.statistics.finding import Number
from counterpoise.statistics.student import bonferroni_level


@dataclass(frozen=True, slots=True)
class TunedComparison:
    """One arm against the baseline, each at rates that were chosen for it on the other seeds."""

    arm: str
    rates: tuple[float, float]  # chosen on the even and on the odd seeds, for the arm
    baseline_rates: tuple[float, float]
    comparison: Comparison  # its `rate` is the one chosen on the even seeds

    def __str__(self) -> str:
        return (
            f"each at its best rate ({_rates(self.rates)} against {_rates(self.baseline_rates)}) "
            f"{format_points(self.comparison.rollouts)} at equal rollouts and "
            f"{format_points(self.comparison.updates)} at equal updates over "
            f"{format_count(self.comparison.rollouts.n, 'seed')}"
            f"{describe_missing_spread(self.comparison)}"
        )


def compare_tuned(
    runs: Runs, experiment: Experiment, column: str = HELDOUT_COLUMN
) -> list[TunedComparison]:
    """Every other arm against the baseline; empty unless `tuned` is set and all runs are there."""
    design = experiment.design
    if not experiment.options.tuned or any(run_key not in runs for run_key in design.run_keys()):
        return []
    halves = tuple(
        [seed for seed in half_seeds if _has_one_start(runs, experiment, seed)]
        for half_seeds in (list(design.seeds)[::2], list(design.seeds)[1::2])
    )
    if not all(halves):
        return []
    best_rates = {
        arm: tuple(_best_rate(runs, experiment, arm, half_seeds, column) for half_seeds in halves)
        for arm in design.arms
    }
    other_arms = [arm for arm in design.arms if arm != experiment.baseline]
    level = bonferroni_level(experiment.options.level, experiment.verdict_family)
    comparisons = []
    for arm in other_arms:
        differences: dict[Cost, list[float]] = {"rollouts": [], "updates": []}
        # The rates chosen on one half are judged on the seeds of the other.
        for half_index, judged_seeds in ((0, halves[1]), (1, halves[0])):
            for seed in judged_seeds:
                arm_curve, baseline_curve = (
                    runs[RunKey(arm_name, best_rates[arm_name][half_index], seed)]
                    for arm_name in (arm, experiment.baseline)
                )
                for cost, values in differences.items():
                    difference = difference_at_equal_cost(arm_curve, baseline_curve, cost, column)
                    if difference is not None:
                        values.append(difference)
        # Held-out success was not measured at this setting.
        if not differences["rollouts"]:
            continue
        comparison = Comparison(
            arm,
            experiment.baseline,
            best_rates[arm][0],
            rollouts=paired_mean(differences["rollouts"], level),
            updates=paired_mean(differences["updates"], level),
        )
        comparisons.append(
            TunedComparison(
                arm,
                (best_rates[arm][0], best_rates[arm][1]),
                (best_rates[experiment.baseline][0], best_rates[experiment.baseline][1]),
                comparison,
            )
        )
    return comparisons


def tuned_numbers(comparisons: Sequence[TunedComparison]) -> list[Number]:
    numbers = []
    for tuned in comparisons:
        number_name = f"{tuned.arm} minus {tuned.comparison.baseline}, each at its tuned rate"
        for cost in ("rollouts", "updates"):
            mean = getattr(tuned.comparison, cost)
            numbers.append(as_number(f"{number_name}, equal {cost}", mean))
    return numbers


def tuned_sentence(experiment: Experiment) -> str:
    """How rates are chosen, in words; empty where arms are not tuned."""
    if not experiment.options.tuned:
        return ""
    return (
        "Tuned against tuned: each arm's rate is the one with the highest mean final success over "
        "the even seeds and is judged on the odd ones, and the other way round."
    )


def _has_one_start(runs: Runs, experiment: Experiment, seed: int) -> bool:
    """Whether all runs of the seed, of every arm and rate, began with the same weights."""
    seed_runs = (runs[run_key] for run_key in experiment.design.run_keys() if run_key.seed == seed)
    return len({curve[0].get("start") for curve in seed_runs}) == 1


def _best_rate(
    runs: Runs, experiment: Experiment, arm: str, seeds: Sequence[int], column: str
) -> float:
    """The rate with the highest mean final success over `seeds`; the smaller rate wins a tie."""

    def mean_success(rate: float) -> float:
        finals = [last_value(column)(runs[RunKey(arm, rate, seed)]) for seed in seeds]
        return sum(value for value in finals if value is not None) / len(seeds)

    return max(sorted(experiment.design.rates), key=mean_success)


def _rates(rates: tuple[float, float]) -> str:
    return f"{rates[0]:g}" if rates[0] == rates[1] else f"{rates[0]:g} and {rates[1]:g}"
