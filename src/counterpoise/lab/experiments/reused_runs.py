"""Reuse runs of another experiment that have exactly the options of runs of this one.

    [experiment]
    shares = ["smollm2-interventions"]

A baseline that was trained once need not be trained again. A piece of the other experiment is used
arm by arm: a run is taken if all its options equal those of a run of this experiment, its learning
rate among them, whatever the two files call the arm and however they judge it. Where a pilot
chooses the rates, nothing is taken before it has. The paths of the model, of the problems and of
files with functions do not count, since they differ between folders and machines: functions are
compared by the content of their files, weights and problems have digests of their own, only runs
with the same start are paired, and runs on other problems are refused (pieces.py).

A reused run keeps the name and digest of the experiment that it was trained for (`origin`), and
every result mentions it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from counterpoise.errors import format_count
from counterpoise.lab.experiments.comparable_options import (
    ComparableOptions,
    TrainedArm,
    comparable_options,
)
from counterpoise.lab.experiments.curves import Runs
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.experiment_file import Experiment, read_experiment
from counterpoise.lab.experiments.pilot_rates import RATE_COLUMN, trained_rates

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
    our_rates = {arm: [lr] for arm, lr in experiment.design.arm_rates.items()}
    matching_arms = _matching_arms(
        _options_by_arm(experiment, our_rates),
        _options_by_arm(other_experiment, trained_rates(their_runs)),
    )
    matching: Runs = {}
    for ours, theirs in matching_arms.items():
        for seed in experiment.design.seeds:
            curve = their_runs.get(RunKey(theirs.arm, theirs.rate, seed))
            # Runs of one arm may have been trained at rates of different pilots.
            if not curve or curve[0].get(RATE_COLUMN) != theirs.lr:
                continue
            origin = (
                curve[0].get(ORIGIN_COLUMN) or f"{other_experiment.name} {other_experiment.digest}"
            )
            changes = {"arm": ours.arm, "rate": ours.rate, ORIGIN_COLUMN: origin}
            if ours.lr is not None:
                changes[RATE_COLUMN] = ours.lr
            matching[RunKey(ours.arm, ours.rate, seed)] = [
                {name: value for name, value in record.items() if name != RATE_COLUMN} | changes
                for record in curve
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
    our_options: Mapping[TrainedArm, object], their_options: Mapping[TrainedArm, object]
) -> dict[TrainedArm, TrainedArm]:
    """An arm of ours -> the arm of theirs with the same options."""
    matching_arms = {}
    for ours, options in our_options.items():
        same = [theirs for theirs, candidate in their_options.items() if candidate == options]
        if same:
            matching_arms[ours] = same[0]
    return matching_arms


def _options_by_arm(
    experiment: Experiment, pilot_rates: Mapping[str, Iterable[float]]
) -> dict[TrainedArm, ComparableOptions]:
    """Options of the runs of every arm and rate; `pilot_rates` are used if the file has none."""
    design = experiment.design
    takes_rates = bool(experiment.options.rates_from)
    return {
        TrainedArm(arm, rate, lr): comparable_options(design, TrainedArm(arm, rate, lr))
        for arm in design.arms
        for rate in design.rates
        for lr in (pilot_rates.get(arm, ()) if takes_rates else (None,))
    }
