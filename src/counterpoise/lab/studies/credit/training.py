"""Training runs of the credit arms, paired by seed: success at equal rollouts and equal seconds.

    seconds    iterations times the median iteration of the run, without the monitor's seconds

The median ignores other load on the machine. An arm whose weights are 1 everywhere on the study's
batch would train the same as `uniform`, and is left out.

Runs go seed by seed over all arms, with slow arms last. With `train_minutes`, the runs that have
ended by then are compared, and records of the panel "untrained" name the others; a larger limit, or
none, continues with them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from counterpoise.errors import PoiseError
from counterpoise.lab.experiments.compare import LEVEL, compare, differences
from counterpoise.lab.experiments.curves import (
    Runs,
    arm_names,
    group_by_run,
    last_value,
    learning_rates,
    mean_over_run,
    read_curve,
    values_by_seed,
)
from counterpoise.lab.experiments.processes import Fleet, FleetProgress, number_of_jobs
from counterpoise.lab.studies.arms import design_runs, final_success
from counterpoise.lab.studies.credit.arms import BASELINE, credit_arms
from counterpoise.lab.studies.credit.tokens import ARMS_PROGRESS
from counterpoise.lab.studies.harness import Lab
from counterpoise.statistics.finding import Record, Records
from counterpoise.statistics.student import SeedMean, bonferroni_level, student_mean
from counterpoise.store.folder import RunFolder

# Many runs of which only metrics are read: store little, and share the cores.
LEAN_OPTIONS = ("verify.workers=1", "store.model=false", "store.report=false")
OUT_OF_TIME = "out of time"


def measure_training(
    lab: Lab, excluded: Collection[str], slow: Collection[str] = ()
) -> list[Record]:
    """Train the arms of the budget, except the excluded ones, and return their records."""
    sizes, arms_by_name = lab.sizes["training"], credit_arms()
    options_by_arm = {
        arm_name: (*LEAN_OPTIONS, *arms_by_name[arm_name].options)
        for arm_name in sizes["arms"]
        if arm_name not in excluded
    }
    design = design_runs(replace(lab, sizes=sizes), list(options_by_arm), options_by_arm)
    # A stable sort: runs stay ordered by seed, so all arms have the same seeds when time runs out.
    run_keys = sorted(design.run_keys(), key=lambda run_key: run_key.arm in slow)
    fleet = Fleet(
        {run_key.name: design.overrides(run_key) for run_key in run_keys},
        lab.out / "runs" / lab.budget,
    )

    def report_progress(fleet_progress: FleetProgress) -> None:
        share = ARMS_PROGRESS + (1 - ARMS_PROGRESS) * fleet_progress.done_share
        lab.progress(f"{fleet_progress.finished} of {fleet_progress.total} runs", share)

    fleet.train(number_of_jobs(), report_progress, minutes=lab.sizes["train_minutes"] or None)
    finished = [run_key for run_key in run_keys if fleet.finished(run_key.name)]
    if fleet.failures and not finished:
        run_name, message = next(iter(fleet.failures.items()))
        raise PoiseError(f"the run in {fleet.folder / run_name} failed: {message}")
    training_records = [
        {"panel": "training", **run_key._asdict(), **record}
        for run_key in finished
        for record in read_timed_run(RunFolder.open(fleet.folder / run_key.name))
    ]
    return training_records + [
        {
            "panel": "untrained",
            **run_key._asdict(),
            "reason": fleet.failures.get(run_key.name, OUT_OF_TIME),
        }
        for run_key in run_keys
        if run_key not in finished
    ]


def read_timed_run(folder: RunFolder) -> list[Record]:
    """A run's records with seconds, and with the exchangeability residual where it is known."""
    metrics_lines = folder.read("metrics")
    # One number for the whole run: single iterations are too noisy to add up.
    seconds_per_iteration = statistics.median(
        metrics_line["iteration_seconds"] - metrics_line.get("monitor_seconds", 0.0)
        for metrics_line in metrics_lines
    )
    residuals = {
        metrics_line["iteration"]: metrics_line.get("exchangeability")
        for metrics_line in metrics_lines
    }
    return [
        {
            **record,
            "seconds": seconds_per_iteration * record["iteration"],
            "residual": residuals.get(record["iteration"]),
        }
        for record in read_curve(folder)
    ]


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """Results of an arm at one learning rate; differences from the baseline are paired by seed."""

    arm: str
    rate: float
    success: SeedMean
    by_rollouts: SeedMean | None  # difference at equal rollouts; None: the baseline itself
    by_seconds: SeedMean | None  # at equal seconds
    slowdown: SeedMean | None  # seconds of an iteration over the baseline's, less 1
    cancellation: float | None  # mean over the run, and over seeds
    residual: float | None
    entropy: float | None  # at the end


def training_results(records: Records) -> list[TrainingResult]:
    """Results of every arm at every rate; intervals of differences hold for all arms together."""
    runs = group_by_run([record for record in records if record["panel"] == "training"])
    other_arms = [arm for arm in arm_names(runs) if arm != BASELINE]
    # All comparisons of this table are one family: their intervals hold together.
    family = max(1, len(other_arms) * len(learning_rates(runs)))
    results = []
    for rate in learning_rates(runs):
        for arm in arm_names(runs):
            success = final_success(runs, arm, rate)
            by_rollouts = by_seconds = slowdown = None
            if arm != BASELINE:
                comparisons = [
                    comparison
                    for comparison in compare(runs, arm, BASELINE, family=family)
                    if comparison.rate == rate
                ]
                time_differences = differences(runs, arm, BASELINE, rate, "seconds")
                by_rollouts = comparisons[0].rollouts if comparisons else None
                by_seconds = (
                    student_mean(time_differences, bonferroni_level(LEVEL, family))
                    if time_differences
                    else None
                )
                slowdown = _slowdown(runs, arm, rate)
            cancellation, residual, entropy = (
                _mean_of_seeds(runs, arm, rate, metric)
                for metric in (
                    mean_over_run("cancellation"),
                    mean_over_run("residual"),
                    last_value("entropy"),
                )
            )
            results.append(
                TrainingResult(
                    arm=arm,
                    rate=rate,
                    success=success,
                    by_rollouts=by_rollouts,
                    by_seconds=by_seconds,
                    slowdown=slowdown,
                    cancellation=cancellation,
                    residual=residual,
                    entropy=entropy,
                )
            )
    return results


def untrained_notes(records: Records) -> list[str]:
    """Sentences that say which runs were not trained and why; empty when all were."""
    untrained_records = [record for record in records if record["panel"] == "untrained"]
    trained_count = len(
        {
            (record["arm"], record["rate"], record["seed"])
            for record in records
            if record["panel"] == "training"
        }
    )
    notes = []
    for reason in dict.fromkeys(record["reason"] for record in untrained_records):
        seeds_by_arm: dict[str, list[str]] = {}
        for record in untrained_records:
            if record["reason"] == reason:
                seeds_by_arm.setdefault(record["arm"], []).append(str(record["seed"]))
        listing = "; ".join(
            f"{arm} {', '.join(arm_seeds)}" for arm, arm_seeds in seeds_by_arm.items()
        )
        untrained_count = sum(map(len, seeds_by_arm.values()))
        notes.append(
            f"{untrained_count} of {trained_count + len(untrained_records)} runs are not trained, "
            f"{reason}: {listing} (seeds)."
        )
    return notes


def _slowdown(runs: Runs, arm: str, rate: float) -> SeedMean | None:
    arm_seconds, baseline_seconds = (
        values_by_seed(runs, arm_name, rate, _iteration_seconds) for arm_name in (arm, BASELINE)
    )
    slowdowns = [
        arm_seconds[seed] / baseline_seconds[seed] - 1
        for seed in sorted(arm_seconds.keys() & baseline_seconds.keys())
    ]
    return student_mean(slowdowns) if slowdowns else None


def _iteration_seconds(curve: list[Record]) -> float | None:
    """Seconds per iteration of a run."""
    last_record = curve[-1]
    return last_record["seconds"] / last_record["iteration"] if last_record["iteration"] else None


def _mean_of_seeds(
    runs: Runs, arm: str, rate: float, metric: Callable[[list[Record]], float | None]
) -> float | None:
    """The mean of a metric over seeds; None where no run has it."""
    seed_values = values_by_seed(runs, arm, rate, metric)
    return statistics.fmean(seed_values.values()) if seed_values else None
