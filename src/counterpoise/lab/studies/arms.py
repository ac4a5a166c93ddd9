"""Training runs on a small model that differ in batching: `interventions` and `sign_partition`.

    shuffled         rows in random steps; the baseline
    QB               whole groups in one step (`grouped`)
    RB               shuffled, but only on batches with a quarter of either sign (tau = 0.25)
    QB+RB            both
    zigzag, token_balanced      as in other frameworks (docs/reference/batching.md)
    by_sign          positive and negative rollouts in different steps, so nothing can cancel

Everything else is runs/demo.toml in float32. Learning rates: 1e-4, the demo's, which trains stably,
and in the full budget also 4e-4, near the edge of collapse, where the paper's effect is largest.
Both were chosen before any of these runs.

The result of an arm is its held-out success at temperature 1, on the same problems for all arms,
compared seed by seed at equal rollouts and at equal updates (`lab/experiments/compare.py`). To run
the same arms on a pretrained model, write an experiment: docs/results/experiments.md.

S_B is the sum of the advantages of those rollouts of a group that are in one optimizer step: 0 when
the group is whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from counterpoise.errors import PoiseError
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
from counterpoise.statistics.student import SeedMean

ArmTable = Mapping[str, tuple[str, ...]]  # arm -> options, as --set takes them

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
COMMON = ("model.dtype=float32", "store.rollouts=false", "store.tokens=false", "monitor.watch=0")
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
# Reported beside success, to tell "no effect" from "nothing to cancel".
SIDE_METRICS = {
    "cancellation": ("cancellation index", mean_over_run("cancellation")),
    "split": ("share of groups split", mean_over_run("split")),
    "largest_sum": (
        "largest advantage sum |S_B| of a group in one step",
        mean_over_run("largest_sum"),
    ),
    "entropy": ("entropy at the end, nats", last_value("entropy")),
    "updates": ("updates", last_value("updates")),
}


def check_options(lab: Lab, arm_options: Iterable[str], *, trains: bool = True) -> None:
    """Refuse --set for options that the arms set themselves, or that differ between their runs."""
    set_by_study = {option.partition("=")[0] for option in arm_options}
    if trains:
        set_by_study |= {"update.lr", "loop.seed"}
    for option in lab.options:
        name = option.partition("=")[0]
        if name in set_by_study:
            remedy = "use --size rates" if name == "update.lr" else "leave it out"
            raise PoiseError(f"--set {option}: the arms of this study set {name}: {remedy}")


def design_runs(lab: Lab, arms: Sequence[str], table: ArmTable = ARMS) -> Design:
    """All runs of these arms: every learning rate with every seed."""
    sizes = lab.sizes
    common_options = (
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
    arm_options = {arm: table[arm] for arm in arms}
    # All arms use the same seeds, so that they can be compared seed by seed.
    seeds = range(lab.seed, lab.seed + sizes["seeds"])
    return Design("demo", common_options, arm_options, sizes["rates"], seeds)


def measure_arms(lab: Lab, arms: Sequence[str]) -> Records:
    """Train the missing runs in OUT/runs/BUDGET, which all arm studies share, and read all runs."""
    check_options(lab, [option for arm in arms for option in ARMS[arm]])
    design = design_runs(lab, arms)
    runs = {run_key.name: design.overrides(run_key) for run_key in design.run_keys()}
    run_folder = lab.out / "runs" / lab.budget
    folders = train_runs(runs, run_folder, lab.progress, lab.weights_digest)
    records: list[Record] = []
    for run_key in design.run_keys():
        curve = read_curve(folders[run_key.name])
        records += [{**run_key._asdict(), **record} for record in curve]
    return records


def final_success(runs: Runs, arm: str, rate: float, column: str = HELDOUT_COLUMN) -> SeedMean:
    """Held-out success at the end of training, as a mean over seeds."""
    return mean_over_seeds(
        list(values_by_seed(runs, arm, rate, last_value(column)).values()), value_range(column)
    )


def side_metric(
    runs: Runs, arm: str, rate: float, metric_name: str
) -> tuple[float, float, float] | None:
    """(mean, minimum, maximum) of a side metric over seeds; None where no run has it."""
    values = list(values_by_seed(runs, arm, rate, SIDE_METRICS[metric_name][1]).values())
    return (sum(values) / len(values), min(values), max(values)) if values else None


def arm_numbers(runs: Runs, baseline: str = BASELINE) -> tuple[Number, ...]:
    """For every arm: success, differences, detectable differences, and side metrics."""
    numbers: list[Number] = []
    for rate in learning_rates(runs):
        at_rate = f"lr {rate:g}"
        for arm in arm_names(runs):
            numbers.append(as_number(f"{arm}, {at_rate}: success", final_success(runs, arm, rate)))
            if arm != baseline:
                (comparison,) = (
                    rate_comparison
                    for rate_comparison in compare(runs, arm, baseline)
                    if rate_comparison.rate == rate
                )
                number_name = f"{arm} minus {baseline}, {at_rate}"
                numbers.append(as_number(f"{number_name}, equal rollouts", comparison.rollouts))
                numbers.append(as_number(f"{number_name}, equal updates", comparison.updates))
                if has_interval(comparison.rollouts):
                    number_name = f"{number_name}: smallest difference these seeds would show"
                    numbers.append(
                        Number(number_name, comparison.rollouts.detectable, unit="share")
                    )
            for metric_name, (label, _) in SIDE_METRICS.items():
                if side_values := side_metric(runs, arm, rate, metric_name):
                    numbers.append(Number(f"{arm}, {at_rate}: {label}", side_values[0]))
    return tuple(numbers)
