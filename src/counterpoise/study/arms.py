"""Batching rules as arms of one experiment: the same seeds, prompts and start, another batch.

    shuffled         rows at random in the steps; the baseline
    QB               whole groups in one step (`grouped`)
    RB               shuffled, but only on batches with a quarter of either sign (tau = 0.25)
    QB+RB            both
    zigzag, token_balanced      what other frameworks do (docs/batch.md)
    by_sign          positive and negative rollouts in different steps: nothing can cancel

Everything else is runs/demo.toml in float32. Learning rates: 1e-4, the demo's, which trains stably,
and in the full budget 4e-4, near the edge of collapse, where the paper sees its largest effect.
Both were chosen before any of these runs.

An arm's result is held-out success at temperature 1 on the same problems for all. RB waits for
balanced batches and so takes fewer updates for the rollouts it samples; therefore every comparison
is made twice, each run's held-out curve read (linearly between evaluations)

    at equal rollouts     the fewest that any run of that rate sampled
    at equal updates      the fewest that any run of that rate took

and differences are taken seed by seed (`study/student.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from counterpoise.store.folder import RunFolder
from counterpoise.study.lab import Lab
from counterpoise.study.runs import train_runs
from counterpoise.study.student import Mean, student
from counterpoise.study.study import Number, Record, Records

BASELINE = "shuffled"
ARMS = {
    "shuffled": ("batch.composer=shuffled", "balance.tau=0"),
    "QB": ("batch.composer=grouped", "balance.tau=0"),
    "RB": ("batch.composer=shuffled", "balance.tau=0.25"),
    "QB+RB": ("batch.composer=grouped", "balance.tau=0.25"),
    "zigzag": ("batch.composer=zigzag", "balance.tau=0"),
    "token_balanced": ("batch.composer=token_balanced", "balance.tau=0"),
    "by_sign": ("batch.composer=by_sign", "balance.tau=0"),
}
COMMON = (
    "model.dtype=float32", "store.rollouts=false", "store.tokens=false", "monitor.watch=0",
)  # fmt: skip
BUDGETS: dict[str, dict[str, Any]] = {
    "quick": {
        "rates": [1e-4], "seeds": 2, "iterations": 10, "prompts": 8, "target": 48, "steps": 4,
        "evaluate_every": 5, "heldout": 64, "samples": 4, "monitor_every": 5,
    },
    "full": {
        "rates": [1e-4, 4e-4], "seeds": 8, "iterations": 60, "prompts": 16, "target": 96,
        "steps": 4, "evaluate_every": 10, "heldout": 256, "samples": 4, "monitor_every": 5,
    },
}  # fmt: skip
LEVEL = 0.95  # of all rates together
FEWEST_SEEDS = 3  # for a verdict
BESIDE = {  # what tells "no effect" from "nothing to cancel"
    "cancellation": "cancellation index",
    "split": "share of groups split",
    "largest_sum": "largest |S_B| of a plan",
    "entropy": "entropy at the end, nats",
    "updates": "updates",
}


# -- measure --------------------------------------------------------------------------------------


def measure_arms(lab: Lab, arms: Sequence[str]) -> Records:
    """Train what is not trained yet, in OUT/runs/BUDGET, which all arm studies share."""
    sizes = lab.sizes
    options = (
        *COMMON,
        f"model.name={lab.model}",
        f"loop.iterations={sizes['iterations']}",
        f"sample.prompts={sizes['prompts']}",
        f"balance.target={sizes['target']}",
        f"batch.steps={sizes['steps']}",
        f"evaluate.prompts={sizes['heldout']}",
        f"evaluate.samples={sizes['samples']}",
        f"evaluate.every={sizes['evaluate_every']}",
        f"monitor.every={sizes['monitor_every']}",
    )
    keys = [
        (arm, rate, lab.seed + seed)
        for rate in sizes["rates"]
        for seed in range(sizes["seeds"])
        for arm in arms
    ]
    names = {key: f"{key[0]}-lr{key[1]:g}-seed{key[2]}" for key in keys}
    runs = {
        names[arm, rate, seed]: (*options, *ARMS[arm], f"update.lr={rate}", f"loop.seed={seed}")
        for arm, rate, seed in keys
    }
    folders = train_runs(runs, lab.out / "runs" / lab.budget, lab.progress)
    records: list[Record] = []
    for arm, rate, seed in keys:
        about = {"arm": arm, "rate": rate, "seed": seed}
        records += [{**about, **r} for r in read_run(folders[names[arm, rate, seed]])]
    return records


def read_run(folder: RunFolder) -> list[Record]:
    """Its curve, a record an iteration, and one record of what happened besides."""
    metrics, plans = folder.read("metrics"), folder.read("plans")
    heldout = {line["iteration"]: line["mean"] for line in folder.read("evaluations")}
    updates = np.cumsum([0, *(line["steps"] for line in metrics)]).tolist()
    rollouts = np.cumsum([0, *(line["rollouts"] for line in metrics)]).tolist()
    success = [None, *(line["success"] for line in metrics)]
    curve: list[Record] = [
        {
            "panel": "curve", "iteration": i, "updates": updates[i], "rollouts": rollouts[i],
            "success": success[i], "heldout": heldout.get(i),
        }
        for i in range(len(metrics) + 1)
    ]  # fmt: skip
    described = [plan["describe"] for plan in plans]
    entropies = [line["entropy"] for line in metrics if line["entropy"] is not None]
    beside: Record = {
        "panel": "beside",
        "cancellation": _mean([line.get("cancellation") for line in metrics]),
        "split": _mean([d["split_share"] for d in described]),
        "largest_sum": _mean([d["max_abs_group_advantage_sum"] for d in described]),
        "entropy": entropies[-1] if entropies else None,
        "updates": updates[-1],
    }
    return [*curve, beside]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


# -- compare --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Comparison:
    """One arm against another at one rate, paired by seed, in success."""

    rate: float
    rollouts: Mean  # at equal rollouts
    updates: Mean  # at equal updates

    def above(self, bound: float) -> bool:
        """Both intervals lie above `bound`."""
        return self.decisive and min(self.rollouts.low, self.updates.low) > bound

    def below(self, bound: float) -> bool:
        return self.decisive and max(self.rollouts.high, self.updates.high) < bound

    @property
    def decisive(self) -> bool:
        """Two seeds may agree by chance: success is a multiple of 1 / samples."""
        return self.rollouts.n >= FEWEST_SEEDS


def rates(records: Records) -> list[float]:
    return sorted({r["rate"] for r in records})


def arms(records: Records) -> list[str]:
    return list(dict.fromkeys(r["arm"] for r in records))


def at_equal(records: Records, rate: float, cost: str) -> dict[str, dict[int, float]]:
    """arm -> seed -> held-out success at the least `cost` ("rollouts" or "updates") of any run."""
    evaluated: dict[tuple[str, int], list[tuple[float, float]]] = {}
    ends: dict[tuple[str, int], float] = {}
    for r in records:
        if r["panel"] == "curve" and r["rate"] == rate:
            key = (r["arm"], r["seed"])
            ends[key] = max(ends.get(key, 0), r[cost])
            if r["heldout"] is not None:
                evaluated.setdefault(key, []).append((r[cost], r["heldout"]))
    least = min(ends.values())
    found: dict[str, dict[int, float]] = {}
    for (arm, seed), points in evaluated.items():
        at, success = zip(*sorted(points), strict=True)
        found.setdefault(arm, {})[seed] = float(np.interp(least, at, success))
    return found


def compare(records: Records, arm: str, against: str = BASELINE) -> list[Comparison]:
    """At every rate; intervals hold for all rates together (Bonferroni)."""
    of_rates = rates(records)
    level = 1 - (1 - LEVEL) / len(of_rates)

    def paired(rate: float, cost: str) -> Mean:
        success = at_equal(records, rate, cost)
        seeds = sorted(success[arm].keys() & success[against].keys())
        return student([success[arm][s] - success[against][s] for s in seeds], level)

    return [Comparison(r, paired(r, "rollouts"), paired(r, "updates")) for r in of_rates]


def after(records: Records, arm: str, rate: float) -> Mean:
    """Held-out success at the end: at equal rollouts, since all runs are equally long."""
    return student(list(at_equal(records, rate, "rollouts")[arm].values()))


def beside(records: Records, arm: str, rate: float, name: str) -> tuple[float, float, float] | None:
    """Mean, least and most of the seeds."""
    values = [
        r[name]
        for r in records
        if r["panel"] == "beside" and (r["arm"], r["rate"]) == (arm, rate) and r[name] is not None
    ]
    return (fmean(values), min(values), max(values)) if values else None


def numbers(records: Records, against: str = BASELINE) -> tuple[Number, ...]:
    """Success, differences, what could have been seen, and what happened besides, for all arms."""
    found: list[Number] = []
    for place, rate in enumerate(rates(records)):
        for arm in arms(records):
            at = f"lr {rate:g}"
            found.append(_number(f"{arm}, {at}: success", after(records, arm, rate)))
            if arm != against:
                one, name = compare(records, arm, against)[place], f"{arm} minus {against}, {at}"
                found.append(_number(f"{name}, equal rollouts", one.rollouts))
                found.append(_number(f"{name}, equal updates", one.updates))
                if one.rollouts.n > 1:
                    name = f"{name}: smallest difference these seeds would show"
                    found.append(Number(name, one.rollouts.seen, unit="share"))
            for key, label in BESIDE.items():
                if seen := beside(records, arm, rate, key):
                    found.append(Number(f"{arm}, {at}: {label}", seen[0]))
    return tuple(found)


def _number(name: str, mean: Mean) -> Number:
    """One seed has no interval."""
    low, high = (mean.low, mean.high) if mean.n > 1 else (None, None)
    return Number(name, mean.value, low, high, unit="share")


def told(one: Comparison) -> str:
    """One comparison in words."""
    a, b = one.rollouts, one.updates
    return (
        f"at lr {one.rate:g} {100 * a.value:+.1f} points [{100 * a.low:+.1f}, {100 * a.high:+.1f}] "
        f"at equal rollouts and {100 * b.value:+.1f} [{100 * b.low:+.1f}, {100 * b.high:+.1f}] at "
        f"equal updates over {a.n} seeds (could have shown {100 * a.seen:.1f})"
    )
