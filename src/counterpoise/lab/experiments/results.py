"""An experiment's arms in numbers: success, differences, collapse, costs, mechanism.

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
from counterpoise.statistics.student import Mean, holm


@dataclass(frozen=True, slots=True)
class ArmResult:
    """One arm at one rate."""

    arm: str
    rate: float
    seeds: int
    success: dict[str, Mean]  # column of held-out success -> at the end, cut to [0, 1]
    vs_baseline: dict[str, Comparison]  # the same -> against the baseline; empty for the baseline
    p_value: float  # by Holm; nan for the baseline
    collapsed_runs: int  # of `seeds`
    collapse_p_value: float  # sign test against the baseline, not adjusted; nan without a pair
    measures: dict[str, Mean]  # those that were measured


def arm_results(runs: Runs, experiment: Experiment) -> list[ArmResult]:
    """Arm after arm, rate after rate; only what has been run."""
    found = [
        result
        for rate in experiment.design.rates
        for arm in experiment.design.arms
        if (result := _result(runs, experiment, arm, rate))
    ]
    compared = [i for i, one in enumerate(found) if not math.isnan(one.p_value)]
    adjusted = holm([found[i].p_value for i in compared])
    ps = dict(zip(compared, adjusted, strict=True))
    return [replace(one, p_value=ps[i]) if i in ps else one for i, one in enumerate(found)]


def _result(runs: Runs, experiment: Experiment, arm: str, rate: float) -> ArmResult | None:
    mine = [c for key, c in runs.items() if (key.arm, key.rate) == (arm, rate)]
    if not mine:
        return None
    success, against = {}, {}
    for column in experiment.heldout_columns:
        if ends := list(values_by_seed(runs, arm, rate, last_value(column)).values()):
            success[column] = mean_over_seeds(ends, SHARE_RANGE)
        for one in compare_with_baseline(runs, experiment, arm, column):
            if one.rate == rate:
                against[column] = one
    main = against.get(HELDOUT_COLUMN)
    measured = {
        name: mean_over_seeds(list(values.values()), measure.value_range)
        for name, measure in MEASURES.items()
        if (values := values_by_seed(runs, arm, rate, measure.compute))
        and (len(values) == len(mine) or not measure.needs_all_runs)
    }
    p = max(main.rollouts.p, main.updates.p) if main and main.rollouts.n > 1 else math.nan
    fallen = _collapses(runs, experiment, arm, rate)
    theirs = _collapses(runs, experiment, experiment.baseline, rate)
    both = fallen.keys() & theirs.keys()
    more = sum(fallen[s] > theirs[s] for s in both)
    fewer = sum(fallen[s] < theirs[s] for s in both)
    return ArmResult(
        arm,
        rate,
        len(mine),
        success,
        against,
        p,
        sum(fallen.values()),
        math.nan if arm == experiment.baseline or not both else sign_test(more, fewer),
        measured,
    )


def _collapses(
    runs: Runs, experiment: Experiment, arm: str, rate: float
) -> dict[tuple[int, str | None], bool]:
    """(seed, start) -> whether its run collapsed."""
    bounds = experiment.options.collapse_of_start, experiment.options.collapse_below_best
    mine = {key.seed: c for key, c in runs.items() if (key.arm, key.rate) == (arm, rate)}
    return {
        (seed, curve[0].get("start")): has_collapsed(curve, *bounds) for seed, curve in mine.items()
    }


def compare_with_baseline(
    runs: Runs, experiment: Experiment, arm: str, column: str = HELDOUT_COLUMN
) -> list[Comparison]:
    """`arm` against the baseline at every rate; intervals hold for all arms and rates together."""
    if arm == experiment.baseline:
        return []
    level, family = experiment.options.level, experiment.family
    return compare(runs, arm, experiment.baseline, column=column, level=level, family=family)


def named_numbers(found: list[ArmResult], experiment: Experiment) -> tuple[Number, ...]:
    """Those that decide come first."""
    named: list[Number] = []
    asked = [hypothesis.arm for hypothesis in experiment.hypotheses]
    first = sorted(found, key=lambda o: asked.index(o.arm) if o.arm in asked else len(asked))
    for one in first:
        for column, setting in experiment.heldout_columns.items():
            if column in one.vs_baseline:
                named += _differences(one, one.vs_baseline[column], setting)
    for one in found:
        at = f"{one.arm}, lr {one.rate:g}"
        for column, mean in one.success.items():
            named.append(as_number(f"{at}: success at {experiment.heldout_columns[column]}", mean))
        low, high = wilson(one.collapsed_runs, one.seeds)
        share = one.collapsed_runs / one.seeds
        named.append(Number(f"{at}: runs that collapsed", share, low, high, unit="share"))
        for name, mean in one.measures.items():
            unit = "share" if MEASURES[name].percent else ""
            named.append(as_number(f"{at}: {MEASURES[name].label}", mean, unit))
    return tuple(named)


def _differences(one: ArmResult, against: Comparison, setting: str) -> list[Number]:
    name = f"{one.arm} minus {against.baseline}, lr {one.rate:g}, at {setting}"
    found = [
        as_number(f"{name}, equal rollouts", against.rollouts),
        as_number(f"{name}, equal updates", against.updates),
    ]
    if has_interval(against.rollouts):
        name += ": smallest difference these seeds would show"
        found.append(Number(name, against.rollouts.seen, unit="share"))
    return found
