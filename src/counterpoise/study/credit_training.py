"""Training runs of the arms, paired by seed: success by rollouts sampled and by seconds.

    seconds    iterations times the median iteration of the run, without the monitor's

The median leaves out what else the machine did. An arm whose weights are 1 everywhere on the
study's batch would train what `uniform` trains, and is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from counterpoise.experiment.compare import LEVEL, compare, differences
from counterpoise.experiment.curves import Runs, arms, by_run, end, mean, of_seeds, rates, read_run
from counterpoise.statistics.finding import Record, Records
from counterpoise.statistics.student import Mean, student, together
from counterpoise.store.folder import RunFolder
from counterpoise.study import credit_arms
from counterpoise.study.arms import after, measure_arms
from counterpoise.study.credit_arms import BASELINE
from counterpoise.study.credit_tokens import MEASURED_SHARE
from counterpoise.study.lab import Lab


def measure_training(lab: Lab, idle: Collection[str]) -> list[Record]:
    """Of the budget's arms but the idle ones."""
    sizes = lab.sizes["training"]
    every = credit_arms.arms()
    table = {name: every[name].options for name in sizes["arms"] if name not in idle}

    def progress(doing: str, share: float) -> None:
        lab.progress(doing, MEASURED_SHARE + (1 - MEASURED_SHARE) * share)

    bench = replace(lab, sizes=sizes, progress=progress)
    return [{"panel": "training", **r} for r in measure_arms(bench, list(table), table, read_timed)]


def read_timed(folder: RunFolder) -> list[Record]:
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
    runs = by_run([r for r in records if r["panel"] == "training"])
    others = [arm for arm in arms(runs) if arm != BASELINE]
    family = max(1, len(others) * len(rates(runs)))
    found = []
    for rate in rates(runs):
        for arm in arms(runs):
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
                for of in (mean("cancellation"), mean("residual"), end("entropy"))
            )
            found.append(
                Trained(
                    arm, rate, success, by_rollouts, by_seconds, slower, cancellation, residual,
                    entropy,
                )
            )  # fmt: skip
    return found


def _slower(runs: Runs, arm: str, rate: float) -> Mean | None:
    mine, theirs = (of_seeds(runs, who, rate, _each) for who in (arm, BASELINE))
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
    found = of_seeds(runs, arm, rate, of)
    return statistics.fmean(found.values()) if found else None
