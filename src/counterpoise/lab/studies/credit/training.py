"""Training runs of the arms, paired by seed: success by rollouts sampled and by seconds.

    seconds    iterations times the median iteration of the run, without the monitor's

The median leaves out what else the machine did. An arm whose weights are 1 everywhere on the
study's batch would train what `uniform` trains, and is left out.

Runs go seed by seed over all arms, those of slow arms last. With `train_minutes` those that have
ended by then are compared, and records of the panel "untrained" name the others; another limit, or
none, goes on with them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from counterpoise.errors import PoiseError
from counterpoise.lab.experiments.compare import LEVEL, compare, differences
from counterpoise.lab.experiments.curves import (
    Runs,
    arms,
    by_run,
    end,
    mean,
    of_seeds,
    rates,
    read_run,
)
from counterpoise.lab.experiments.processes import Fleet, Standing, number_of_jobs
from counterpoise.lab.studies.arms import design_runs, final_success
from counterpoise.lab.studies.credit.arms import BASELINE, credit_arms
from counterpoise.lab.studies.credit.tokens import ARMS_PROGRESS
from counterpoise.lab.studies.harness import Lab
from counterpoise.statistics.finding import Record, Records
from counterpoise.statistics.student import SeedMean, bonferroni_level, student_mean
from counterpoise.store.folder import RunFolder

LEAN_OPTIONS = (
    "verify.workers=1",
    "store.model=false",
    "store.report=false",
)  # many runs, few numbers
OUT_OF_TIME = "not in the time given"


def measure_training(lab: Lab, idle: Collection[str], slow: Collection[str] = ()) -> list[Record]:
    """Of the budget's arms but the idle ones."""
    sizes, every = lab.sizes["training"], credit_arms()
    table = {
        name: (*LEAN_OPTIONS, *every[name].options) for name in sizes["arms"] if name not in idle
    }
    plan = design_runs(replace(lab, sizes=sizes), list(table), table)
    keys = sorted(plan.runs(), key=lambda key: key.arm in slow)
    fleet = Fleet({key.name: plan.overrides(key) for key in keys}, lab.out / "runs" / lab.budget)

    def tell(standing: Standing) -> None:
        share = ARMS_PROGRESS + (1 - ARMS_PROGRESS) * standing.share
        lab.progress(f"{standing.ended} of {standing.total} runs", share)

    fleet.train(number_of_jobs(), tell, minutes=lab.sizes["train_minutes"] or None)
    ended = [key for key in keys if fleet.finished(key.name)]
    if fleet.failures and not ended:
        name, said = next(iter(fleet.failures.items()))
        raise PoiseError(f"the run in {fleet.folder / name} failed: {said}")
    found = [
        {"panel": "training", **key._asdict(), **r}
        for key in ended
        for r in read_timed_run(RunFolder.open(fleet.folder / key.name))
    ]
    return found + [
        {"panel": "untrained", **key._asdict(), "reason": fleet.failures.get(key.name, OUT_OF_TIME)}
        for key in keys
        if key not in ended
    ]


def read_timed_run(folder: RunFolder) -> list[Record]:
    """A run's curve with its seconds, and the residual on shared prefixes where it is known."""
    lines = folder.read("metrics")
    each = statistics.median(
        line["iteration_seconds"] - line.get("monitor_seconds", 0.0) for line in lines
    )
    residuals = {line["iteration"]: line.get("exchangeability") for line in lines}
    return [
        {**r, "seconds": each * r["iteration"], "residual": residuals.get(r["iteration"])}
        for r in read_run(folder)
    ]


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """An arm at one rate; differences are from the baseline, seed by seed."""

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
    """Every arm at every rate; intervals of differences hold for all of them together."""
    runs = by_run([r for r in records if r["panel"] == "training"])
    others = [arm for arm in arms(runs) if arm != BASELINE]
    family = max(1, len(others) * len(rates(runs)))
    found = []
    for rate in rates(runs):
        for arm in arms(runs):
            success = final_success(runs, arm, rate)
            by_rollouts = by_seconds = slower = None
            if arm != BASELINE:
                one = [c for c in compare(runs, arm, BASELINE, family=family) if c.rate == rate]
                timed = differences(runs, arm, BASELINE, rate, "seconds")
                by_rollouts = one[0].rollouts if one else None
                by_seconds = student_mean(timed, bonferroni_level(LEVEL, family)) if timed else None
                slower = _slowdown(runs, arm, rate)
            cancellation, residual, entropy = (
                _mean_of_seeds(runs, arm, rate, of)
                for of in (mean("cancellation"), mean("residual"), end("entropy"))
            )
            found.append(
                TrainingResult(
                    arm, rate, success, by_rollouts, by_seconds, slower, cancellation, residual,
                    entropy,
                )
            )  # fmt: skip
    return found


def untrained_notes(records: Records) -> list[str]:
    """What was not trained, and why, in sentences; without one when everything was."""
    runs = [r for r in records if r["panel"] == "untrained"]
    every = len({(r["arm"], r["rate"], r["seed"]) for r in records if r["panel"] == "training"})
    found = []
    for reason in dict.fromkeys(r["reason"] for r in runs):
        seeds: dict[str, list[str]] = {}
        for r in runs:
            if r["reason"] == reason:
                seeds.setdefault(r["arm"], []).append(str(r["seed"]))
        named = "; ".join(f"{arm} {', '.join(each)}" for arm, each in seeds.items())
        count = sum(map(len, seeds.values()))
        found.append(
            f"{count} of {every + len(runs)} runs are not trained, {reason}: {named} (seeds)."
        )
    return found


def _slowdown(runs: Runs, arm: str, rate: float) -> SeedMean | None:
    mine, theirs = (of_seeds(runs, who, rate, _iteration_seconds) for who in (arm, BASELINE))
    pairs = [mine[seed] / theirs[seed] - 1 for seed in sorted(mine.keys() & theirs.keys())]
    return student_mean(pairs) if pairs else None


def _iteration_seconds(curve: list[Record]) -> float | None:
    """Seconds of an iteration."""
    last = curve[-1]
    return last["seconds"] / last["iteration"] if last["iteration"] else None


def _mean_of_seeds(
    runs: Runs, arm: str, rate: float, of: Callable[[list[Record]], float | None]
) -> float | None:
    """Over seeds; None where no seed knows it."""
    found = of_seeds(runs, arm, rate, of)
    return statistics.fmean(found.values()) if found else None
