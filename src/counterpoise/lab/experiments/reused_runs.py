"""Runs of another experiment that are the very runs of this one.

    [experiment]
    shares = ["smollm2-interventions"]

A baseline that was trained once need not be trained again. A piece of that experiment counts here,
arm by arm: a run is taken if all its options are those of a run of this experiment, whatever the
two files call its arm, and however they judge it. Where the model lies does not count; its weights
have their own digest, and only runs with the same start are paired.

A shared run keeps the name and digest of the experiment that it was trained for (`origin`), and
every result says so.
"""

from __future__ import annotations

from dataclasses import replace

from counterpoise.config import RunConfig
from counterpoise.config.load import load_config
from counterpoise.errors import counted
from counterpoise.lab.experiments.curves import Runs
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.experiment_file import Experiment, read_experiment

ORIGIN_COLUMN = "origin"  # column of curves.parquet; none for runs of the experiment itself


def find_shared_experiment(experiment: Experiment, digest: str) -> Experiment | None:
    """The experiment of this digest, if `experiment` shares its runs."""
    others = (read_experiment(name) for name in experiment.options.shares)
    return next((other for other in others if other.digest == digest), None)


def matching_runs(theirs: Runs, other: Experiment, experiment: Experiment) -> Runs:
    """`theirs` that are runs of `experiment` too, under its names."""
    twins = _twins(other, experiment)
    taken: Runs = {}
    for key in experiment.design.run_keys():
        twin = twins.get((key.arm, key.rate))
        if twin and (curve := theirs.get(key._replace(arm=twin))):
            origin = curve[0].get(ORIGIN_COLUMN) or f"{other.name} {other.digest}"
            taken[key] = [{**r, "arm": key.arm, ORIGIN_COLUMN: origin} for r in curve]
    return taken


def run_origins(runs: Runs) -> dict[str, dict[str, int]]:
    """Experiment that runs were trained for, if not for this one -> arm -> how many."""
    found: dict[str, dict[str, int]] = {}
    for key, curve in runs.items():
        if origin := curve[0].get(ORIGIN_COLUMN):
            of_arms = found.setdefault(origin, {})
            of_arms[key.arm] = of_arms.get(key.arm, 0) + 1
    return found


def describe_reused_runs(runs: Runs) -> list[str]:
    """A sentence for every other experiment; none where all runs are its own."""
    return [
        f"{counted(sum(of_arms.values()), 'run')} shared with another experiment and trained for "
        f"it, {origin}: {', '.join(f'{arm} {n}' for arm, n in of_arms.items())}."
        for origin, of_arms in run_origins(runs).items()
    ]


def _twins(other: Experiment, experiment: Experiment) -> dict[tuple[str, float], str]:
    """(arm, rate) of `experiment` -> the arm of `other` with the same options."""
    rates = [rate for rate in experiment.design.rates if rate in other.design.rates]
    known = {(arm, rate): _options(other, arm, rate) for arm in other.design.arms for rate in rates}
    twins = {}
    for arm in experiment.design.arms:
        for rate in rates:
            options = _options(experiment, arm, rate)
            found = [a for (a, r), theirs in known.items() if r == rate and theirs == options]
            if found:
                twins[arm, rate] = found[0]
    return twins


def _options(experiment: Experiment, arm: str, rate: float) -> RunConfig:
    """Of this arm's runs, seeds and the place of the model aside."""
    plan = experiment.design
    config = load_config(plan.base, list(plan.overrides(RunKey(arm, rate, seed=0))))
    return replace(config, model=replace(config.model, name=""))
