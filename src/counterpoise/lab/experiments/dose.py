"""Dose-response: the slope of held-out success on a quantity that the arms vary.

    for every seed that has all arms:   (x_a, y_a)   x_a = mean of the dose over the run of arm a
                                                     y_a = its held-out success at equal cost
    slope of the seed                 = sum (x_a - x) (y_a - y) / sum (x_a - x)^2
    estimate                          = mean of the seeds' slopes, with Student's t over seeds

Slopes are taken within a seed, so differences between seeds (prompts, random numbers) cancel, as
in a paired comparison. Cost is read twice, as in compare.py: at the fewest rollouts and at the
fewest updates that any arm of the seed spent.

The verdict on "success rises (or falls) with the dose":

    replicated        at both costs the interval lies on the stated side of 0
    not replicated    at both costs it excludes slopes as steep as `dose_margin`
    inconclusive      otherwise, with fewer than three seeds, and where the slope is the same at
                      every seed: without spread there is no interval (compare.py)

The manipulation check comes first, since the slope means nothing unless the arms really differ in
the dose: if their mean doses differ by less than `dose_range`, or not at all, there is no verdict
("untestable here"), however steep the slope. A seed whose arms all had the same dose has no slope.

`dose_arms` restricts the slope to some arms, for files whose other arms differ in more than the
dose. With `dose_decides` the slope is the verdict of the whole experiment: replicated if it is so
at some rate (intervals hold for all rates together), not replicated if it is so at every rate.
Without it, the slope is judged beside the verdict, which is that of the first hypothesis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from counterpoise.lab.experiments.compare import (
    FEWEST_SEEDS,
    Cost,
    as_number,
    has_interval,
    interpolate_at,
    paired_mean,
)
from counterpoise.lab.experiments.curves import HELDOUT_COLUMN, Runs, mean_over_run
from counterpoise.lab.experiments.experiment_file import Experiment
from counterpoise.lab.experiments.experiment_options import ExperimentConfig
from counterpoise.statistics.finding import Number, Record, Verdict
from counterpoise.statistics.student import SeedMean, bonferroni_level

SMALLEST_SPREAD = 1e-9  # doses that differ by less are the same: curves are stored in float32
COSTS: tuple[Literal["rollouts"], Literal["updates"]] = ("rollouts", "updates")


@dataclass(frozen=True, slots=True)
class DoseResponse:
    """How success follows the dose at one learning rate."""

    rate: float
    rollouts: SeedMean  # of the seeds' slopes, at equal rollouts
    updates: SeedMean  # at equal updates
    doses: dict[str, float]  # arm -> its mean dose over seeds
    verdict: Verdict
    required_range: float = 0.0  # by which the doses have to differ

    @property
    def dose_spread(self) -> float:
        return max(self.doses.values()) - min(self.doses.values())

    def __str__(self) -> str:
        doses = ", ".join(
            f"{arm} {dose:.3g}"
            for arm, dose in sorted(self.doses.items(), key=lambda item: item[1])
        )
        if self.verdict == "untestable here":
            return (
                f"no verdict at lr {self.rate:g}, because the arms' mean doses differ by "
                f"{self.dose_spread:.3g}, "
                + (f"less than {self.required_range:g}" if self.required_range else "not at all")
                + f" (doses: {doses})"
            )
        return (
            f"at lr {self.rate:g} {_format_slope(self.rollouts)} at equal rollouts and "
            f"{_format_slope(self.updates)} at equal updates over {self.rollouts.n} seeds "
            f"(doses: {doses})"
        )


def dose_responses(runs: Runs, experiment: Experiment) -> list[DoseResponse]:
    """The response at every rate with a complete seed; empty if the file names no dose."""
    options = experiment.options
    if not options.dose:
        return []
    # One comparison per rate: intervals hold for all rates together.
    level = bonferroni_level(options.level, len(experiment.design.rates))
    responses = []
    for rate in experiment.design.rates:
        complete_seeds = [
            (curves, doses)
            for curves in _complete_seeds(
                runs, options.dose_arms or list(experiment.design.arms), rate
            )
            if (doses := _doses(curves, options.dose))
        ]
        if not complete_seeds:
            continue
        slopes = {
            cost: _mean_slope(
                [_slope(curves, doses, cost) for curves, doses in complete_seeds], level
            )
            for cost in COSTS
        }
        mean_doses = {
            arm: float(np.mean([doses[arm] for _, doses in complete_seeds]))
            for arm in complete_seeds[0][1]
        }
        response = DoseResponse(
            rate,
            slopes["rollouts"],
            slopes["updates"],
            mean_doses,
            _verdict(list(slopes.values()), experiment),
            options.dose_range,
        )
        if response.dose_spread < max(options.dose_range, SMALLEST_SPREAD):
            response = replace(response, verdict="untestable here")
        responses.append(response)
    return responses


def verdict_on_slope(responses: Sequence[DoseResponse], experiment: Experiment) -> Verdict:
    """The verdict of an experiment that its slope decides."""
    verdicts = [response.verdict for response in responses]
    if "replicated" in verdicts:
        return "replicated"
    # Rates that have not been run yet may still decide.
    if len(verdicts) == len(experiment.design.rates) and len(set(verdicts)) == 1:
        return verdicts[0]
    return "inconclusive"


def dose_numbers(responses: Sequence[DoseResponse], experiment: Experiment) -> list[Number]:
    numbers = []
    for response in responses:
        for cost in COSTS:
            slope: SeedMean = getattr(response, cost)
            if not slope.n:
                continue
            number_name = f"success per unit of {experiment.options.dose}, lr {response.rate:g}"
            numbers.append(as_number(f"{number_name}, equal {cost}", slope))
    return numbers


def describe_dose_effect(options: ExperimentConfig) -> str:
    """What is expected of the slope: "success rises with rarer_sign_share"."""
    return f"success {options.dose_effect} with {options.dose}"


def dose_sentence(experiment: Experiment) -> str:
    """The decision rule in words; empty if the file names no dose."""
    options = experiment.options
    if not options.dose:
        return ""
    side = "above" if options.dose_effect == "rises" else "below"
    arms = f"{', '.join(options.dose_arms)}" if options.dose_arms else "the arms"
    return (
        f"Success {options.dose_effect} with {options.dose}"
        f", {'which is the verdict' if options.dose_decides else 'judged beside the verdict'}: "
        f"the slope over {arms} of a "
        f"seed, averaged over seeds, replicated when both intervals lie {side} 0, not replicated "
        f"when both exclude slopes of {100 * options.dose_margin:g} points per unit or steeper; no "
        f"verdict when the arms' mean doses differ by less than {options.dose_range:g}."
    )


def _complete_seeds(runs: Runs, arms: list[str], rate: float) -> list[dict[str, list[Record]]]:
    """arm -> curve for each seed that has all arms, all from the same start."""
    curves_by_seed: dict[int, dict[str, list[Record]]] = {}
    for run_key, curve in runs.items():
        if run_key.rate == rate and run_key.arm in arms:
            curves_by_seed.setdefault(run_key.seed, {})[run_key.arm] = curve
    return [
        curves
        for _, curves in sorted(curves_by_seed.items())
        if len(curves) == len(arms)
        and len({curve[0].get("start") for curve in curves.values()}) == 1
    ]


def _doses(curves: dict[str, list[Record]], column: str) -> dict[str, float]:
    """arm -> its mean dose over the run; empty unless all arms have one."""
    doses = {
        arm: dose
        for arm, curve in curves.items()
        if (dose := mean_over_run(column)(curve)) is not None
    }
    return doses if len(doses) == len(curves) else {}


def _slope(curves: dict[str, list[Record]], doses: dict[str, float], cost: Cost) -> float | None:
    """The slope of one seed; None if all arms had the same dose."""
    equal_cost = min(curve[-1][cost] for curve in curves.values())
    success_A = np.array(
        [interpolate_at(curves[arm], cost, equal_cost, HELDOUT_COLUMN) for arm in curves]
    )
    dose_A = np.array([doses[arm] for arm in curves])
    if np.ptp(dose_A) < SMALLEST_SPREAD:
        return None
    centred_A = dose_A - dose_A.mean()
    return float(centred_A @ (success_A - success_A.mean())) / float(centred_A @ centred_A)


def _mean_slope(slopes: Sequence[float | None], level: float) -> SeedMean:
    """The mean over seeds that have a slope; if no seed has one, a mean of nan with n = 0."""
    known_slopes = [slope for slope in slopes if slope is not None]
    if not known_slopes:
        return SeedMean(math.nan, math.nan, math.nan, math.nan, 0)
    return paired_mean(known_slopes, level)


def _verdict(slopes: Sequence[SeedMean], experiment: Experiment) -> Verdict:
    options = experiment.options
    if any(slope.n < FEWEST_SEEDS or not has_interval(slope) for slope in slopes):
        return "inconclusive"
    # Bounds are multiplied by the expected sign, so that "rises" and "falls" share one rule.
    expected_sign = 1 if options.dose_effect == "rises" else -1
    lower_bounds = [min(expected_sign * slope.low, expected_sign * slope.high) for slope in slopes]
    upper_bounds = [max(expected_sign * slope.low, expected_sign * slope.high) for slope in slopes]
    if min(lower_bounds) > 0:
        return "replicated"
    return "not replicated" if max(upper_bounds) < options.dose_margin else "inconclusive"


def _format_slope(slope: SeedMean) -> str:
    if has_interval(slope):
        interval = f" [{100 * slope.low:+.1f}, {100 * slope.high:+.1f}]"
    else:
        interval = " (the same at every seed: no interval)" if slope.n > 1 else ""
    return f"{100 * slope.value:+.1f} points per unit{interval}"
