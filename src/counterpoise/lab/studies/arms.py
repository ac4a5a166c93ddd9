"""The batching rules as arms on a small model: what `interventions` and `sign_partition` train.

    shuffled         rows at random in the steps; the baseline
    QB               whole groups in one step (`grouped`)
    RB               shuffled, but only on batches with a quarter of either sign (tau = 0.25)
    QB+RB            both
    zigzag, token_balanced      what other frameworks do (docs/batch.md)
    by_sign          positive and negative rollouts in different steps: nothing can cancel

Everything else is runs/demo.toml in float32. Learning rates: 1e-4, the demo's, which trains stably,
and in the full budget 4e-4, near the edge of collapse, where the paper sees its largest effect.
Both were chosen before any of these runs.

An arm's result is held-out success at temperature 1 on the same problems for all, compared seed by
seed at equal rollouts and at equal updates (`lab/experiments/compare.py`). The same arms on a
pretrained model are an experiment with a file of its own: docs/experiment.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from counterpoise.lab.experiments.compare import as_number, compare, has_interval
from counterpoise.lab.experiments.curves import (
    HELDOUT_COLUMN,
    Runs,
    arm_names,
    last_value,
    learning_rates,
    mean_over_run,
    read_curve,
    value_range,
    values_by_seed,
)
from counterpoise.lab.experiments.design import Design
from counterpoise.lab.experiments.processes import train_runs
from counterpoise.lab.experiments.seed_means import mean_over_seeds
from counterpoise.lab.studies.harness import Lab
from counterpoise.statistics.finding import Number, Record, Records
from counterpoise.statistics.student import Mean
from counterpoise.store.folder import RunFolder

Table = Mapping[str, tuple[str, ...]]  # arm -> its options, as --set takes them
Read = Callable[[RunFolder], list[Record]]  # what a finished run came to

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
BESIDE = {  # what tells "no effect" from "nothing to cancel"
    "cancellation": ("cancellation index", mean_over_run("cancellation")),
    "split": ("share of groups split", mean_over_run("split")),
    "largest_sum": ("largest |S_B| of a plan", mean_over_run("largest_sum")),
    "entropy": ("entropy at the end, nats", last_value("entropy")),
    "updates": ("updates", last_value("updates")),
}


def design(lab: Lab, arms: Sequence[str], table: Table = ARMS) -> Design:
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
        *lab.options,
    )
    chosen = {arm: table[arm] for arm in arms}
    seeds = range(lab.seed, lab.seed + sizes["seeds"])
    return Design("demo", options, chosen, sizes["rates"], seeds)


def measure_arms(
    lab: Lab, arms: Sequence[str], table: Table = ARMS, read: Read = read_curve
) -> Records:
    """Train what is not trained yet, in OUT/runs/BUDGET, which all arm studies share."""
    plan = design(lab, arms, table)
    runs = {key.name: plan.overrides(key) for key in plan.run_keys()}
    folders = train_runs(runs, lab.out / "runs" / lab.budget, lab.progress)
    records: list[Record] = []
    for key in plan.run_keys():
        records += [{**key._asdict(), **r} for r in read(folders[key.name])]
    return records


def after(runs: Runs, arm: str, rate: float, column: str = HELDOUT_COLUMN) -> Mean:
    """Held-out success at the end, over seeds."""
    return mean_over_seeds(
        list(values_by_seed(runs, arm, rate, last_value(column)).values()), value_range(column)
    )


def beside(runs: Runs, arm: str, rate: float, name: str) -> tuple[float, float, float] | None:
    """Mean, least and most of the seeds."""
    values = list(values_by_seed(runs, arm, rate, BESIDE[name][1]).values())
    return (sum(values) / len(values), min(values), max(values)) if values else None


def numbers(runs: Runs, against: str = BASELINE) -> tuple[Number, ...]:
    """Success, differences, what could have been seen, and what happened besides, for all arms."""
    found: list[Number] = []
    for rate in learning_rates(runs):
        at = f"lr {rate:g}"
        for arm in arm_names(runs):
            found.append(as_number(f"{arm}, {at}: success", after(runs, arm, rate)))
            if arm != against:
                (one,) = (c for c in compare(runs, arm, against) if c.rate == rate)
                name = f"{arm} minus {against}, {at}"
                found.append(as_number(f"{name}, equal rollouts", one.rollouts))
                found.append(as_number(f"{name}, equal updates", one.updates))
                if has_interval(one.rollouts):
                    name = f"{name}: smallest difference these seeds would show"
                    found.append(Number(name, one.rollouts.seen, unit="share"))
            for key, (label, _) in BESIDE.items():
                if seen := beside(runs, arm, rate, key):
                    found.append(Number(f"{arm}, {at}: {label}", seen[0]))
    return tuple(found)
