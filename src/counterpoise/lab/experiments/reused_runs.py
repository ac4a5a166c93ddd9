"""Reuse runs of another experiment that have exactly the options of runs of this one.

    [experiment]
    shares = ["smollm2-interventions"]

A baseline that was trained once need not be trained again. A piece of the other experiment is used
arm by arm: a run is taken if all its options equal those of a run of this experiment, whatever the
two files call the arm and however they judge it. The paths of the model and of the problems do not
count, since they differ between machines: weights and problems have digests of their own, only runs
with the same start are paired, and runs on other problems are refused (pieces.py).

A reused run keeps the name and digest of the experiment that it was trained for (`origin`), and
every result mentions it.
"""

from __future__ import annotations

from dataclasses import replace

from counterpoise.config import RunConfig
from counterpoise.config.load import load_config
from counterpoise.errors import format_count
from counterpoise.lab.experiments.curves import Runs
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.experiment_file import Experiment, read_experiment

ORIGIN_COLUMN = "origin"  # column of curves.parquet; none for runs of the experiment itself


def find_shared_experiment(experiment: Experiment, digest: str) -> Experiment | None:
    """The experiment with this digest among those in `experiment.shares`, if there is one."""
    candidates = (read_experiment(experiment_name) for experiment_name in experiment.options.shares)
    return next((candidate for candidate in candidates if candidate.digest == digest), None)


def matching_runs(their_runs: Runs, other_experiment: Experiment, experiment: Experiment) -> Runs:
    """The runs of `other_experiment` that are also runs of `experiment`, under its arm names."""
    # Arms are matched by their options: the two files may use different names.
    their_arms = _matching_arms(other_experiment, experiment)
    matching: Runs = {}
    for run_key in experiment.design.run_keys():
        their_arm = their_arms.get((run_key.arm, run_key.rate))
        if their_arm and (curve := their_runs.get(run_key._replace(arm=their_arm))):
            origin = (
                curve[0].get(ORIGIN_COLUMN) or f"{other_experiment.name} {other_experiment.digest}"
            )
            matching[run_key] = [
                {**record, "arm": run_key.arm, ORIGIN_COLUMN: origin} for record in curve
            ]
    return matching


def run_origins(runs: Runs) -> dict[str, dict[str, int]]:
    """Origin of reused runs (another experiment) -> arm -> number of runs."""
    counts: dict[str, dict[str, int]] = {}
    for run_key, curve in runs.items():
        if origin := curve[0].get(ORIGIN_COLUMN):
            runs_by_arm = counts.setdefault(origin, {})
            runs_by_arm[run_key.arm] = runs_by_arm.get(run_key.arm, 0) + 1
    return counts


def describe_reused_runs(runs: Runs) -> list[str]:
    """One sentence for every other experiment whose runs are reused."""
    return [
        f"{format_count(sum(runs_by_arm.values()), 'run')} reused from another experiment, "
        f"{origin}: {', '.join(f'{arm} {count}' for arm, count in runs_by_arm.items())}."
        for origin, runs_by_arm in run_origins(runs).items()
    ]


def _matching_arms(
    other_experiment: Experiment, experiment: Experiment
) -> dict[tuple[str, float], str]:
    """(arm, rate) of `experiment` -> the arm of `other_experiment` with the same options."""
    rates = [rate for rate in experiment.design.rates if rate in other_experiment.design.rates]
    their_options = {
        (arm, rate): _comparable_options(other_experiment, arm, rate)
        for arm in other_experiment.design.arms
        for rate in rates
    }
    matching_arms = {}
    for arm in experiment.design.arms:
        for rate in rates:
            options = _comparable_options(experiment, arm, rate)
            arms_with_same_options = [
                their_arm
                for (their_arm, their_rate), candidate_options in their_options.items()
                if their_rate == rate and candidate_options == options
            ]
            if arms_with_same_options:
                matching_arms[arm, rate] = arms_with_same_options[0]
    return matching_arms


def _comparable_options(experiment: Experiment, arm: str, rate: float) -> RunConfig:
    """The options of an arm's runs, without the seed and the paths of model and problems."""
    design = experiment.design
    config = load_config(design.base, list(design.overrides(RunKey(arm, rate, seed=0))))
    return replace(config, model=replace(config.model, name=""), task=replace(config.task, path=""))
