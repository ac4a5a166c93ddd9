"""Runs that failed: how many, why, and what the tables are without them.

A run has failed if its process ended before its last iteration by a fault of its own, and not
because it was stopped. It has no end, so it is in no mean and no comparison, and it counts neither
as collapsed nor as not. A failed run is known by what it said last, here and in pieces, until it
has been made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from counterpoise.errors import counted
from counterpoise.lab.experiments.curves import Runs
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.experiment_file import Experiment
from counterpoise.lab.experiments.results import ArmResult

Failures = Mapping[RunKey, str]  # run -> what it said last
MAX_REASON_CHARACTERS = 200  # characters of a reason on the page

FAILURE_BIAS_NOTE = (
    "A failed run is in no number here, nor is its seed in its arm's comparison (in none, if the "
    "baseline failed). If it failed for what has nothing to do with how it trained (a full disk, "
    "a machine turned off), that costs seeds and biases nothing. If it failed for how it trained "
    "(a loss that is not finite, responses so long that memory ran out), the seeds that are left "
    "are those that went well, its arm looks better than it is, and no verdict here knows that. "
    "The same command tries failed runs again."
)
PILOT_BIAS_NOTE = (
    "A rate is judged by its runs that finished. One at which runs fail for how they train is not "
    "stable, whatever the rule says of the others."
)


def describe_failures(
    failures: Failures, found: Sequence[ArmResult], experiment: Experiment
) -> list[str]:
    """A line for every arm and rate with a failed run; none where all is well."""
    finished = {(one.arm, one.rate): one for one in found}
    lines = []
    for rate in experiment.design.rates:
        for arm in experiment.design.arms:
            mine = {key.seed: said for key, said in failures.items() if key[:2] == (arm, rate)}
            if mine:
                one = finished.get((arm, rate))
                told = f"{_head(mine, arm, rate, one.seeds if one else 0)}. "
                lines.append(told + _without(mine, one, arm, experiment))
    return lines


def describe_pilot_failures(failures: Failures, runs: Runs) -> list[str]:
    """The same by rate; a pilot compares nothing."""
    lines = []
    for rate in sorted({key.rate for key in failures}):
        mine = {key.seed: said for key, said in failures.items() if key.rate == rate}
        arm = next(key.arm for key in failures if key.rate == rate)
        lines.append(_head(mine, arm, rate, sum(key.rate == rate for key in runs)) + ".")
    return lines


def _head(mine: Mapping[int, str], arm: str, rate: float, finished: int) -> str:
    """Example: "RB at lr 0.0004: 2 of 8 runs failed, seeds 3, 5 (out of memory)" """
    seeds: dict[str, list[int]] = {}
    for seed, said in sorted(mine.items()):
        seeds.setdefault(said[:MAX_REASON_CHARACTERS].replace("|", "/").rstrip("."), []).append(
            seed
        )
    why = "; ".join(
        f"{'seed' if len(which) == 1 else 'seeds'} {', '.join(map(str, which))} ({said})"
        for said, which in seeds.items()
    )
    tried = counted(len(mine) + finished, "run")
    return f"{arm} at lr {rate:g}: {len(mine)} of {tried} failed, {why}"


def _without(
    mine: Mapping[int, str], one: ArmResult | None, arm: str, experiment: Experiment
) -> str:
    it, these = ("it", "this seed") if len(mine) == 1 else ("them", "these seeds")
    if arm == experiment.baseline:
        told = f"No arm is compared with it at {these}"
    else:
        pairs = next((c.rollouts.n for c in one.vs_baseline.values()), 0) if one else 0
        over = f"over {counted(pairs, 'seed')}, without {it}" if pairs else "at no seed"
        told = f"It is compared with {experiment.baseline} {over}"
    fallen, seeds = (one.collapsed_runs, one.seeds) if one else (0, 0)
    return (
        f"{told}; collapsed are {fallen} of {seeds}, and {fallen + len(mine)} of "
        f"{seeds + len(mine)} if to fail is to collapse."
    )
