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

from counterpoise.lab.experiments.compare import Comparison, as_number, bounded, compare
from counterpoise.lab.experiments.curves import HELDOUT, SHARE, Runs, end, of_seeds
from counterpoise.lab.experiments.experiment_file import Experiment
from counterpoise.lab.experiments.measures import MEASURES, collapsed, sign_test, wilson
from counterpoise.lab.experiments.seed_means import mean_over_seeds
from counterpoise.statistics.finding import Number
from counterpoise.statistics.student import SeedMean, holm_adjust


@dataclass(frozen=True, slots=True)
class Result:
    """One arm at one rate."""

    arm: str
    rate: float
    seeds: int
    success: dict[str, SeedMean]  # column of held-out success -> at the end, cut to [0, 1]
    against: dict[str, Comparison]  # the same -> against the baseline; empty for the baseline
    p: float  # by Holm; nan for the baseline
    collapsed: int  # of `seeds`
    collapse_p: float  # sign test against the baseline, not adjusted; nan without a pair
    measures: dict[str, SeedMean]  # those that were measured


def results(runs: Runs, experiment: Experiment) -> list[Result]:
    """Arm after arm, rate after rate; only what has been run."""
    found = [
        result
        for rate in experiment.design.rates
        for arm in experiment.design.arms
        if (result := _result(runs, experiment, arm, rate))
    ]
    compared = [i for i, one in enumerate(found) if not math.isnan(one.p)]
    adjusted = holm_adjust([found[i].p for i in compared])
    ps = dict(zip(compared, adjusted, strict=True))
    return [replace(one, p=ps[i]) if i in ps else one for i, one in enumerate(found)]


def _result(runs: Runs, experiment: Experiment, arm: str, rate: float) -> Result | None:
    mine = [c for key, c in runs.items() if (key.arm, key.rate) == (arm, rate)]
    if not mine:
        return None
    success, against = {}, {}
    for column in experiment.columns:
        if ends := list(of_seeds(runs, arm, rate, end(column)).values()):
            success[column] = mean_over_seeds(ends, SHARE)
        for one in comparisons(runs, experiment, arm, column):
            if one.rate == rate:
                against[column] = one
    main = against.get(HELDOUT)
    measured = {
        name: mean_over_seeds(list(values.values()), measure.possible)
        for name, measure in MEASURES.items()
        if (values := of_seeds(runs, arm, rate, measure.of))
        and (len(values) == len(mine) or not measure.of_all)
    }
    p = max(main.rollouts.p, main.updates.p) if main and main.rollouts.n > 1 else math.nan
    fallen = _collapses(runs, experiment, arm, rate)
    theirs = _collapses(runs, experiment, experiment.baseline, rate)
    both = fallen.keys() & theirs.keys()
    more = sum(fallen[s] > theirs[s] for s in both)
    fewer = sum(fallen[s] < theirs[s] for s in both)
    return Result(
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
        (seed, curve[0].get("start")): collapsed(curve, *bounds) for seed, curve in mine.items()
    }


def comparisons(
    runs: Runs, experiment: Experiment, arm: str, column: str = HELDOUT
) -> list[Comparison]:
    """`arm` against the baseline at every rate; intervals hold for all arms and rates together."""
    if arm == experiment.baseline:
        return []
    level, family = experiment.options.level, experiment.family
    return compare(runs, arm, experiment.baseline, column=column, level=level, family=family)


def numbers(found: list[Result], experiment: Experiment) -> tuple[Number, ...]:
    """Those that decide come first."""
    named: list[Number] = []
    asked = [hypothesis.arm for hypothesis in experiment.hypotheses]
    first = sorted(found, key=lambda o: asked.index(o.arm) if o.arm in asked else len(asked))
    for one in first:
        for column, setting in experiment.columns.items():
            if column in one.against:
                named += _differences(one, one.against[column], setting)
    for one in found:
        at = f"{one.arm}, lr {one.rate:g}"
        for column, mean in one.success.items():
            named.append(as_number(f"{at}: success at {experiment.columns[column]}", mean))
        low, high = wilson(one.collapsed, one.seeds)
        share = one.collapsed / one.seeds
        named.append(Number(f"{at}: runs that collapsed", share, low, high, unit="share"))
        for name, mean in one.measures.items():
            unit = "share" if MEASURES[name].percent else ""
            named.append(as_number(f"{at}: {MEASURES[name].label}", mean, unit))
    return tuple(named)


def _differences(one: Result, against: Comparison, setting: str) -> list[Number]:
    name = f"{one.arm} minus {against.against}, lr {one.rate:g}, at {setting}"
    found = [
        as_number(f"{name}, equal rollouts", against.rollouts),
        as_number(f"{name}, equal updates", against.updates),
    ]
    if bounded(against.rollouts):
        name += ": smallest difference these seeds would show"
        found.append(Number(name, against.rollouts.detectable, unit="share"))
    return found
