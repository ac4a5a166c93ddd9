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
    arm_names,
    group_by_run,
    last_value,
    learning_rates,
    mean_over_run,
    read_curve,
    values_by_seed,
)
from counterpoise.lab.experiments.processes import Fleet, FleetProgress, number_of_jobs
from counterpoise.lab.studies.arms import after, design
from counterpoise.lab.studies.credit import arms as credit_arms
from counterpoise.lab.studies.credit.arms import BASELINE
from counterpoise.lab.studies.credit.tokens import MEASURED_SHARE
from counterpoise.lab.studies.harness import Lab
from counterpoise.statistics.finding import Record, Records
from counterpoise.statistics.student import Mean, student, together
from counterpoise.store.folder import RunFolder

LEAN = ("verify.workers=1", "store.model=false", "store.report=false")  # many runs, few numbers
LATE = "not in the time given"


def measure_training(lab: Lab, idle: Collection[str], slow: Collection[str] = ()) -> list[Record]:
    """Of the budget's arms but the idle ones."""
    sizes, every = lab.sizes["training"], credit_arms.arms()
    table = {name: (*LEAN, *every[name].options) for name in sizes["arms"] if name not in idle}
    plan = design(replace(lab, sizes=sizes), list(table), table)
    keys = sorted(plan.run_keys(), key=lambda key: key.arm in slow)
    fleet = Fleet({key.name: plan.overrides(key) for key in keys}, lab.out / "runs" / lab.budget)

    def tell(standing: FleetProgress) -> None:
        share = MEASURED_SHARE + (1 - MEASURED_SHARE) * standing.done_share
        lab.progress(f"{standing.finished} of {standing.total} runs", share)

    fleet.train(number_of_jobs(), tell, minutes=lab.sizes["train_minutes"] or None)
    ended = [key for key in keys if fleet.finished(key.name)]
    if fleet.failures and not ended:
        name, said = next(iter(fleet.failures.items()))
        raise PoiseError(f"the run in {fleet.folder / name} failed: {said}")
    found = [
        {"panel": "training", **key._asdict(), **r}
        for key in ended
        for r in read_timed(RunFolder.open(fleet.folder / key.name))
    ]
    return found + [
        {"panel": "untrained", **key._asdict(), "reason": fleet.failures.get(key.name, LATE)}
        for key in keys
        if key not in ended
    ]


def read_timed(folder: RunFolder) -> list[Record]:
    """A run's curve with its seconds, and the residual on shared prefixes where it is known."""
    lines = folder.read("metrics")
    each = statistics.median(
        line["iteration_seconds"] - line.get("monitor_seconds", 0.0) for line in lines
    )
    residuals = {line["iteration"]: line.get("exchangeability") for line in lines}
    return [
        {**r, "seconds": each * r["iteration"], "residual": residuals.get(r["iteration"])}
        for r in read_curve(folder)
    ]


@dataclass(frozen=True, slots=True)
class Trained:
    """An arm at one rate; differences are from the baseline, seed by seed."""

    arm: str
    rate: float
    success: Mean
    rollouts: Mean | None  # difference at equal rollouts; None: the baseline itself
    seconds: Mean | None  # at equal seconds
    slower: Mean | None  # seconds of an iteration over the baseline's, less 1
    cancellation: float | None  # mean over the run, and over seeds
    residual: float | None
    entropy: float | None  # at the end


def trained(records: Records) -> list[Trained]:
    """Every arm at every rate; intervals of differences hold for all of them together."""
    runs = group_by_run([r for r in records if r["panel"] == "training"])
    others = [arm for arm in arm_names(runs) if arm != BASELINE]
    family = max(1, len(others) * len(learning_rates(runs)))
    found = []
    for rate in learning_rates(runs):
        for arm in arm_names(runs):
            success = after(runs, arm, rate)
            by_rollouts = by_seconds = slower = None
            if arm != BASELINE:
                one = [c for c in compare(runs, arm, BASELINE, family=family) if c.rate == rate]
                timed = differences(runs, arm, BASELINE, rate, "seconds")
                by_rollouts = one[0].rollouts if one else None
                by_seconds = student(timed, together(LEVEL, family)) if timed else None
                slower = _slower(runs, arm, rate)
            cancellation, residual, entropy = (
                _mean(runs, arm, rate, of)
                for of in (
                    mean_over_run("cancellation"),
                    mean_over_run("residual"),
                    last_value("entropy"),
                )
            )
            found.append(
                Trained(
                    arm, rate, success, by_rollouts, by_seconds, slower, cancellation, residual,
                    entropy,
                )
            )  # fmt: skip
    return found


def untrained(records: Records) -> list[str]:
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


def _slower(runs: Runs, arm: str, rate: float) -> Mean | None:
    mine, theirs = (values_by_seed(runs, who, rate, _each) for who in (arm, BASELINE))
    pairs = [mine[seed] / theirs[seed] - 1 for seed in sorted(mine.keys() & theirs.keys())]
    return student(pairs) if pairs else None


def _each(curve: list[Record]) -> float | None:
    """Seconds of an iteration."""
    last = curve[-1]
    return last["seconds"] / last["iteration"] if last["iteration"] else None


def _mean(
    runs: Runs, arm: str, rate: float, of: Callable[[list[Record]], float | None]
) -> float | None:
    """Over seeds; None where no seed knows it."""
    found = values_by_seed(runs, arm, rate, of)
    return statistics.fmean(found.values()) if found else None
