"""Explain the gain of one arm, the reference: what share of it does each other arm reach?

The other arms have only some of the reference's ingredients; `explains` names the reference.

    for every seed that has the arm, the reference and the baseline, at equal cost:
        a = success of the arm - that of the baseline        r = the same for the reference
    share explained = mean a / mean r

    sufficient      the interval of a - 0.75 r lies above 0 at both costs
    excluded        the interval of a - 0.25 r lies below 0 at both costs
    inconclusive    otherwise, with fewer than three seeds, and without spread (compare.py)

The intervals are Student's t over seeds, for all arms and rates together. Verdicts follow from
these differences, so the share itself, a ratio of two noisy means, needs no interval. Where the
interval of r does not lie above 0 at both costs there is no gain to explain, and every arm is
inconclusive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from counterpoise.lab.experiments.compare import (
    FEWEST_SEEDS,
    Cost,
    difference_at_equal_cost,
    paired_mean,
)
from counterpoise.lab.experiments.curves import HELDOUT_COLUMN, Runs
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.experiment_file import Experiment
from counterpoise.statistics.finding import Number
from counterpoise.statistics.student import bonferroni_level

SUFFICIENT_SHARE, EXCLUDED_SHARE = 0.75, 0.25
COSTS: tuple[Literal["rollouts"], Literal["updates"]] = ("rollouts", "updates")
ExplainedVerdict = Literal["sufficient", "excluded", "inconclusive"]


@dataclass(frozen=True, slots=True)
class ExplainedGain:
    """What an arm explains of the reference's gain at one learning rate."""

    arm: str
    reference: str
    rate: float
    shares: dict[str, float]  # cost -> mean a / mean r
    seeds: int
    verdict: ExplainedVerdict

    def __str__(self) -> str:
        shares = " and ".join(
            f"{100 * share:.0f} % at equal {cost}" for cost, share in self.shares.items()
        )
        return (
            f"{self.arm} at lr {self.rate:g} explains {shares} of what {self.reference} gains, "
            f"over {self.seeds} seeds: {self.verdict}"
        )


def explained_gains(runs: Runs, experiment: Experiment) -> list[ExplainedGain]:
    """Every arm but baseline and reference, at every rate that has seeds of all three."""
    reference, design = experiment.options.explains, experiment.design
    if not reference:
        return []
    arms = [arm for arm in design.arms if arm not in (reference, experiment.baseline)]
    level = bonferroni_level(experiment.options.level, len(arms) * len(design.rates))
    gains = []
    for rate in design.rates:
        for arm in arms:
            pairs = {cost: _gains_of_seeds(runs, experiment, (arm, rate), cost) for cost in COSTS}
            if any(pairs.values()):
                gains.append(
                    ExplainedGain(
                        arm,
                        reference,
                        rate,
                        {cost: _ratio_of_means(seed_gains) for cost, seed_gains in pairs.items()},
                        len(pairs["rollouts"]),
                        _verdict(list(pairs.values()), level),
                    )
                )
    return gains


def _gains_of_seeds(
    runs: Runs, experiment: Experiment, arm_and_rate: tuple[str, float], cost: Cost
) -> list[tuple[float, float]]:
    """(a, r) of every seed whose three runs are there and began with the same weights."""
    arm, rate = arm_and_rate
    pairs = []
    for seed in experiment.design.seeds:
        run_keys = [
            RunKey(arm_name, rate, seed)
            for arm_name in (arm, experiment.options.explains, experiment.baseline)
        ]
        if any(run_key not in runs for run_key in run_keys):
            continue
        arm_curve, reference_curve, baseline_curve = (runs[run_key] for run_key in run_keys)
        starts = {curve[0].get("start") for curve in (arm_curve, reference_curve, baseline_curve)}
        gains = [
            difference_at_equal_cost(curve, baseline_curve, cost, HELDOUT_COLUMN)
            for curve in (arm_curve, reference_curve)
        ]
        if len(starts) == 1 and gains[0] is not None and gains[1] is not None:
            pairs.append((gains[0], gains[1]))
    return pairs


def _ratio_of_means(pairs: Sequence[tuple[float, float]]) -> float:
    reference_sum = sum(reference_gain for _, reference_gain in pairs)
    return sum(gain for gain, _ in pairs) / reference_sum if reference_sum else float("nan")


def _verdict(
    pairs_of_costs: Sequence[Sequence[tuple[float, float]]], level: float
) -> ExplainedVerdict:
    if any(len(pairs) < FEWEST_SEEDS for pairs in pairs_of_costs):
        return "inconclusive"
    references = [paired_mean([r for _, r in pairs], level) for pairs in pairs_of_costs]
    if any(not reference.low > 0 for reference in references):
        return "inconclusive"
    beyond_sufficient, beyond_excluded = (
        [paired_mean([a - share * r for a, r in pairs], level) for pairs in pairs_of_costs]
        for share in (SUFFICIENT_SHARE, EXCLUDED_SHARE)
    )
    if all(excess.low > 0 for excess in beyond_sufficient):
        return "sufficient"
    return "excluded" if all(excess.high < 0 for excess in beyond_excluded) else "inconclusive"


def explained_numbers(gains: Sequence[ExplainedGain]) -> list[Number]:
    return [
        Number(
            f"of the gain of {gain.reference}, explained by {gain.arm}, lr {gain.rate:g}, "
            f"equal {cost}",
            share,
            unit="share",
        )
        for gain in gains
        for cost, share in gain.shares.items()
    ]


def explained_sentence(experiment: Experiment) -> str:
    """The decision rule in words; empty if the file names no reference."""
    reference, baseline = experiment.options.explains, experiment.baseline
    if not reference:
        return ""
    return (
        f"What an arm explains of the gain ({reference} - {baseline}), seed by seed: sufficient "
        f"when at both costs the interval of its own gain minus {100 * SUFFICIENT_SHARE:g} % of "
        "that gain lies above 0, excluded when at both costs the interval of its own gain minus "
        f"{100 * EXCLUDED_SHARE:g} % of that gain lies below 0; intervals hold for all arms and "
        "rates together."
    )
