"""Reuse runs of another experiment that have exactly the options of runs of this one.

    [experiment]
    shares = ["smollm2-interventions"]

A baseline that was trained once need not be trained again. A piece of the other experiment is used
arm by arm: a run is taken if all its options equal those of a run of this experiment, its learning
rate among them, whatever the two files call the arm and however they judge it. Where a pilot
chooses the rates, nothing is taken before it has. The paths of the model and of the problems do not
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
from counterpoise.lab.experiments.pilot_rates import RATE_COLUMN

ORIGIN_COLUMN = "origin"  # column of curves.parquet; none for runs of the experiment itself


def find_shared_experiment(experiment: Experiment, digest: str) -> Experiment | None:
    """The experiment with this digest among those in `experiment.shares`, if there is one."""
    candidates = (read_experiment(experiment_name) for experiment_name in experiment.options.shares)
    return next((candidate for candidate in candidates if candidate.digest == digest), None)


def matching_runs(their_runs: Runs, other_experiment: Experiment, experiment: Experiment) -> Runs:
    """The runs of `other_experiment` that are also runs of `experiment`, under its arm names.

    Where a pilot chooses the rates of `experiment`, its design must have them (`arm_rates`).
    """
    # Arms are matched by their options: the two files may use different names, and call the same
    # learning rate by different labels.
    their_arms = _matching_arms(_with_trained_rates(other_experiment, their_runs), experiment)
    matching: Runs = {}
    for run_key in experiment.design.run_keys():
        their_arm, their_rate = their_arms.get((run_key.arm, run_key.rate), ("", 0.0))
        if curve := their_runs.get(RunKey(their_arm, their_rate, run_key.seed)):
            origin = (
                curve[0].get(ORIGIN_COLUMN) or f"{other_experiment.name} {other_experiment.digest}"
            )
            changes = {"arm": run_key.arm, "rate": run_key.rate, ORIGIN_COLUMN: origin}
            # Present exactly where a pilot chooses the rates of this experiment.
            changes[RATE_COLUMN] = experiment.design.arm_rates.get(run_key.arm)
            matching[run_key] = [{**record, **changes} for record in curve]
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


def _with_trained_rates(experiment: Experiment, runs: Runs) -> Experiment:
    """The experiment with the rates that a pilot chose for its arms, as its runs have them."""
    if not experiment.options.rates_from:
        return experiment
    trained_rates = {run_key.arm: curve[0][RATE_COLUMN] for run_key, curve in runs.items()}
    return replace(experiment, design=replace(experiment.design, arm_rates=trained_rates))


def _matching_arms(
    other_experiment: Experiment, experiment: Experiment
) -> dict[tuple[str, float], tuple[str, float]]:
    """(arm, rate) of `experiment` -> that of `other_experiment` with the same options."""
    their_options = _options_by_arm_and_rate(other_experiment)
    matching_arms = {}
    for arm_and_rate, options in _options_by_arm_and_rate(experiment).items():
        same = [theirs for theirs, candidate in their_options.items() if candidate == options]
        if same:
            matching_arms[arm_and_rate] = same[0]
    return matching_arms


def _options_by_arm_and_rate(experiment: Experiment) -> dict[tuple[str, float], RunConfig]:
    """Options of the runs of every arm and rate, as far as its rate has been chosen."""
    design = experiment.design
    return {
        (arm, rate): _comparable_options(experiment, arm, rate)
        for arm in design.arms
        for rate in design.rates
        if arm in design.arm_rates or not experiment.options.rates_from
    }


def _comparable_options(experiment: Experiment, arm: str, rate: float) -> RunConfig:
    """The options of an arm's runs, without the seed and the paths of model and problems."""
    design = experiment.design
    config = load_config(design.base, list(design.overrides(RunKey(arm, rate, seed=0))))
    return replace(config, model=replace(config.model, name=""), task=replace(config.task, path=""))
