"""Every arm at the learning rate that a pilot chose for it.

    [experiment]
    rates = [1e-6]                          # only a label, for tables
    rates_from = "qwen-coder-gsm8k-pilot"   # its curves.parquet goes into DIR/pieces/

    rate(arm) = the pilot's rate with the highest mean final held-out success over the pilot's seeds

A rate at which a run of the arm failed is left out; of rates with equal success the smallest is
taken. The rule is fixed before the pilot, and the pilot's seeds are not judged. The pilot must be
complete for the arms that are trained, start from the same weights, and take the same steps with
its arms (comparable_options.py): its runs may be shorter where nothing decays over them, and
evaluated less. All runs of an arm must have been trained at one rate, that of the pilot where it is
known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from counterpoise.errors import PoiseError, format_count
from counterpoise.lab.experiments.comparable_options import find_different_option
from counterpoise.lab.experiments.curves import HELDOUT_COLUMN, Runs, last_value, values_by_seed
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.experiment_file import Experiment, read_experiment
from counterpoise.lab.experiments.failures import Failures

EQUAL_SUCCESS = 1e-6  # means that differ by less are equal: tables hold them in float32
RATE_COLUMN = "lr"  # column of curves.parquet: the rate that the run was trained at


def find_pilot(experiment: Experiment) -> Experiment | None:
    """The pilot that the experiment takes its rates from: the same runs at other seeds."""
    name = experiment.options.rates_from
    if not name:
        return None
    pilot = read_experiment(name)
    if pilot.options.rate_shares:
        raise PoiseError(
            f"experiment.rates_from: {pilot.name} has rate_shares, and its rates would be taken "
            "without them: leave them out of the pilot"
        )
    for arm in experiment.design.arms:
        if arm not in pilot.design.arms:
            raise PoiseError(
                f"experiment.rates_from: {pilot.name} has no arm {arm}: give both files the same "
                "arms"
            )
        if option := find_different_option(experiment.design, pilot.design, arm):
            raise PoiseError(
                f"experiment.rates_from: {pilot.name} trains {arm} with another {option}: its best "
                "rate need not be the best here; give both files the same options"
            )
    common_seeds = set(pilot.design.seeds) & set(experiment.design.seeds)
    if common_seeds:
        raise PoiseError(
            f"experiment.rates_from: {pilot.name} has seed {min(common_seeds)} too: rates would be "
            "chosen and judged on the same seeds; change experiment.first_seed"
        )
    return pilot


class PilotChoice(NamedTuple):
    """What a pilot says so far; an arm in neither field has runs to come.

    Example: PilotChoice({"QB": 3e-6}, failed=("RB",))
    """

    rates: Mapping[str, float] = {}
    failed: tuple[str, ...] = ()  # arms of which a run failed at every rate


class PilotRuns(NamedTuple):
    """A pilot, and which of its runs are known."""

    experiment: Experiment
    runs: Runs  # finished
    failures: Failures

    @property
    def choice(self) -> PilotChoice:
        """The rates that it chooses so far."""
        return choose(self.runs, self.failures, self.experiment)


def choose(runs: Runs, failures: Failures, pilot: Experiment) -> PilotChoice:
    """arm -> its best rate, of those at which no run failed; arms with runs to come have none."""
    rates_by_arm, failed = {}, []
    for arm in pilot.design.arms:
        success_by_rate = {}
        for rate in sorted(pilot.design.rates):
            keys = [RunKey(arm, rate, seed) for seed in pilot.design.seeds]
            if any(key not in runs and key not in failures for key in keys):
                break
            finals = [last_value(HELDOUT_COLUMN)(runs[key]) for key in keys if key in runs]
            values = [final for final in finals if final is not None]
            if len(values) == len(keys):
                success_by_rate[rate] = sum(values) / len(values)
        else:
            if success_by_rate:
                enough = max(success_by_rate.values()) - EQUAL_SUCCESS
                rates_by_arm[arm] = min(
                    rate for rate, success in success_by_rate.items() if success >= enough
                )
            else:
                failed.append(arm)
    return PilotChoice(rates_by_arm, tuple(failed))


def explain_missing_rates(
    choice: PilotChoice, keys: Iterable[RunKey], experiment: Experiment
) -> str:
    """What to do where a pilot chooses the rates, and some of these runs have none; else "" """
    pilot = experiment.options.rates_from
    if not pilot:
        return ""
    missing = list(dict.fromkeys(key.arm for key in keys if key.arm not in choice.rates))
    if failed := [arm for arm in missing if arm in choice.failed]:
        return (
            f"a run of {', '.join(failed)} failed at every rate of the pilot: repeat its command, "
            f"which tries them again, or leave the arm out of {pilot} and of this file"
        )
    if not missing:
        return ""
    return (
        f"the pilot has chosen no rate for {', '.join(missing)}: finish `poise experiment "
        f"{pilot}` and put its curves.parquet into pieces/ of this experiment's folder"
    )


def trained_rates(runs: Runs) -> dict[str, dict[float, RunKey]]:
    """arm -> the rates of pilots at which its runs were trained -> the first run of each."""
    rates_by_arm: dict[str, dict[float, RunKey]] = {}
    for key, curve in runs.items():
        if (rate := curve[0].get(RATE_COLUMN)) is not None:
            rates_by_arm.setdefault(key.arm, {}).setdefault(rate, key)
    return rates_by_arm


def check_trained_rates(runs: Runs, rates_by_arm: Mapping[str, float]) -> None:
    """Raise unless all runs of an arm were trained at one rate, and at the pilot's if it has one.

    Tables and comparisons would otherwise mix runs of several rates under one name.
    """
    for arm, key_by_rate in trained_rates(runs).items():
        for rate, key in key_by_rate.items():
            if (chosen := rates_by_arm.get(arm, rate)) != rate:
                raise PoiseError(
                    f"{key.name} was trained at {rate:g}, and the pilot in pieces/ chooses "
                    f"{chosen:g}: use the pilot that it was trained with, or another --out"
                )
        if len(key_by_rate) > 1:
            described = [f"{key.name} at {rate:g}" for rate, key in key_by_rate.items()]
            raise PoiseError(
                f"{arm} was trained at several rates, {' and '.join(described)}: keep the runs of "
                "one pilot in pieces/, or use another --out"
            )


def describe_arm_rates(runs: Runs) -> str:
    """The rates that the runs were trained at, in one sentence; empty where the file fixes them."""
    rates = ", ".join(
        f"{arm} {rate:g}"
        for arm, key_by_rate in trained_rates(runs).items()
        for rate in key_by_rate
    )
    return f"Learning rates by the pilot: {rates}." if rates else ""


def arm_table(runs: Runs, failures: Failures, pilot: Experiment) -> list[str]:
    """Markdown: a row per arm, with its mean final success at every rate and its best rate."""
    choice = choose(runs, failures, pilot)
    header = ["arm", *(f"{rate:g}" for rate in pilot.design.rates), "best rate"]
    table_rows = [header, ["---"] * len(header)]
    for arm in pilot.design.arms:
        cells = [
            _final_success_cell(runs, failures, pilot, arm, rate) for rate in pilot.design.rates
        ]
        table_rows.append([arm, *cells, _best_rate_cell(arm, choice)])
    return [
        "Mean final held-out success over seeds, in %, by learning rate:",
        "",
        *("| " + " | ".join(table_row) + " |" for table_row in table_rows),
    ]


def _final_success_cell(
    runs: Runs, failures: Failures, pilot: Experiment, arm: str, rate: float
) -> str:
    """Example: "74.2 (1 of 2, 1 failed)": the mean over one of two planned seeds."""
    success_by_seed = values_by_seed(runs, arm, rate, last_value(HELDOUT_COLUMN))
    failed = sum((key.arm, key.rate) == (arm, rate) for key in failures)
    remark = f"{len(success_by_seed)} of {len(pilot.design.seeds)}"
    remark += f", {failed} failed" if failed else ""
    if not success_by_seed:
        return f"({remark})"
    mean = f"{100 * sum(success_by_seed.values()) / len(success_by_seed):.1f}"
    return mean if len(success_by_seed) == len(pilot.design.seeds) else f"{mean} ({remark})"


def _best_rate_cell(arm: str, choice: PilotChoice) -> str:
    if arm in choice.rates:
        return f"{choice.rates[arm]:g}"
    return "none: a run failed at every rate" if arm in choice.failed else "not all runs yet"


def pilot_sentence(experiment: Experiment) -> str:
    """The rule for the rates, in words; empty where the file fixes them."""
    name = experiment.options.rates_from
    if not name:
        return ""
    return (
        f"Every arm trains at the rate that ended best in the pilot {name}: the highest mean "
        "final success over the pilot's seeds, without rates at which a run failed, the smaller "
        f"of equal ones. Tables call it lr {experiment.design.rates[0]:g}."
    )


def describe_progress(pilot: PilotRuns) -> str:
    """For --dry-run: the rates that are chosen, or what the pilot still lacks."""
    planned = pilot.experiment.design.run_keys()
    ended_count = sum(key in pilot.runs or key in pilot.failures for key in planned)
    rates = ", ".join(f"{arm} {rate:g}" for arm, rate in pilot.choice.rates.items())
    progress = (
        f"{ended_count} of {format_count(len(planned), 'run')} of {pilot.experiment.name} are in "
        "pieces/"
    )
    return f"{progress}; rates: {rates or 'none yet'}"
