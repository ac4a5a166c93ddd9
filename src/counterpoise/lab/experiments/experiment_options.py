"""The options of [experiment] in an experiment file, and which of them go together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.config import option
from counterpoise.errors import PoiseError, unknown_name
from counterpoise.lab.experiments.curves import DOSE_COLUMNS

RECORDING_ENGINES = ("native", "trl")  # verl's runs do not store the curves


@dataclass(frozen=True)
class ExperimentConfig:
    title: str = option("", "one line, for the page")
    shows: str = option("", "figure or table of a paper")
    claim: str = option("", "what is put to the test, in words")
    rule: str = option(
        "",
        "the rule in the author's words, only shown: margin, level and hypotheses decide",
    )
    baseline: str = option("", "the arm that the others are compared with; empty: the first")
    rates: list[float] = option([1e-5], "learning rates, each with all arms and seeds")
    first_seed: int = option(0, "the smallest loop.seed of the runs", at_least=0)
    seeds: int = option(16, "runs of every arm and rate", at_least=1)
    level: float = option(
        0.95, "of all intervals together (arms x rates)", at_least=0.5, at_most=0.999
    )
    margin: float = option(
        0.03, "the smallest difference in success that would matter", at_least=0.0, at_most=1.0
    )
    spread: float = option(
        0.03, "expected std over seeds of a paired difference, for the power", at_least=0.0
    )
    hypotheses: list[str] = option([""], "'ARM > BASELINE' or 'ARM < BASELINE'; the first decides")
    rate_shares: list[str] = option(
        [], "'ARM=0.75': this arm trains at 0.75 of every rate; tables show the full rate"
    )
    engines: list[str] = option(
        [], "'ARM=trl': this arm trains with poise train --engine trl, the others natively"
    )
    rates_from: str = option(
        "",
        "the file of a pilot of the same arms: each arm trains at the rate that ended best there "
        "(pilot_rates.py), and `rates` holds one number that is only a label",
    )
    tuned: bool = option(
        False,
        "judge every arm at its own best rate, chosen on half of the seeds and judged on the other "
        "half (tuned.py); the verdict is then that of the first hypothesis at tuned rates",
    )
    dose: str = option(
        "",
        "a column of the curves that the arms vary, such as cross_advantage_ratio: the slope of "
        "success on its mean over a run is judged too (dose.py)",
    )
    dose_effect: str = option(
        "rises", "what success is expected to do as the dose grows", choices=("rises", "falls")
    )
    dose_margin: float = option(
        0.01, "the flattest slope that would matter: success per unit of the dose", at_least=0.0
    )
    dose_range: float = option(
        0.0, "the arms' mean doses must differ by this much, or no verdict is given", at_least=0.0
    )
    dose_arms: list[str] = option(
        [], "the arms that the slope is taken over, if others differ in more than the dose"
    )
    dose_decides: bool = option(
        False, "the slope is the verdict; hypotheses are judged beside it and decide nothing"
    )
    explains: str = option(
        "",
        "an arm whose gain over the baseline is to be explained: what share of it each other arm "
        "reaches is judged too (explained.py)",
    )
    collapse_of_start: float = option(
        0.5, "a run collapsed if it ended below this part of its first held-out success, or ...",
        at_least=0.0, at_most=1.0,
    )  # fmt: skip
    collapse_below_best: float = option(
        0.2, "... more than this below its best held-out success", at_least=0.0, at_most=1.0
    )
    one_start: bool = option(
        True,
        "all runs begin with the same weights; false: pieces may have a warm-up each, and only "
        "runs with the same start are paired",
    )
    shares: list[str] = option(
        [],
        "other experiment files whose runs are reused: a run in a piece of theirs counts here if "
        "all its options are those of a run of this file (reused_runs.py)",
    )
    benchmarks: list[str] = option(
        [], "what poise eval judges the trained models by in the end; needs store.model = true"
    )
    pilot: bool = option(False, "choose a stable rate and one at the edge instead of comparing")
    fall: float = option(
        0.05, "pilot: a run falls if it ends this far below its best", at_least=0.0, at_most=1.0
    )
    learn: float = option(
        0.05, "pilot: a run learns if its best is this far above its start", at_least=0.0
    )


def check_options(options: ExperimentConfig, arms: Mapping[str, Any], file_name: str) -> None:
    if options.baseline and options.baseline not in arms:
        raise PoiseError(
            f"{file_name}: experiment.baseline: {unknown_name('arm', options.baseline, arms)}"
        )
    if len(set(options.rates)) < len(options.rates):
        raise PoiseError(f"{file_name}: experiment.rates names a learning rate twice")
    if options.rates_from and (len(options.rates) > 1 or options.tuned or options.pilot):
        raise PoiseError(
            f"{file_name}: experiment.rates_from gives every arm one rate: keep one rate in "
            "experiment.rates, and leave out tuned and pilot"
        )
    if options.rates_from and options.rate_shares:
        raise PoiseError(
            f"{file_name}: experiment.rate_shares cannot be used with rates_from: the pilot "
            "chooses the rate of every arm"
        )
    if options.tuned and options.seeds < 2:
        raise PoiseError(
            f"{file_name}: experiment.tuned chooses rates on half of the seeds and judges them on "
            "the other half: raise experiment.seeds to 2 or more"
        )
    if options.dose and options.dose not in DOSE_COLUMNS:
        raise PoiseError(
            f"{file_name}: experiment.dose: {unknown_name('column', options.dose, DOSE_COLUMNS)}"
        )
    for arm in options.dose_arms:
        if arm not in arms:
            raise PoiseError(f"{file_name}: experiment.dose_arms: {unknown_name('arm', arm, arms)}")
    if options.dose_arms and len(set(options.dose_arms)) < 2:
        raise PoiseError(f"{file_name}: experiment.dose_arms: a slope needs two arms or more")
    if len(set(options.dose_arms)) < len(options.dose_arms):
        raise PoiseError(f"{file_name}: experiment.dose_arms names an arm twice")
    if options.dose_decides and not options.dose:
        raise PoiseError(
            f"{file_name}: experiment.dose_decides needs a dose: name a column as experiment.dose"
        )
    if options.explains and options.explains not in arms:
        raise PoiseError(
            f"{file_name}: experiment.explains: {unknown_name('arm', options.explains, arms)}"
        )
    baseline = options.baseline or next(iter(arms))
    if options.explains and not set(arms) - {options.explains, baseline}:
        raise PoiseError(
            f"{file_name}: experiment.explains: there is no arm that could explain the gain of "
            f"{options.explains}"
        )
    if options.explains == baseline:
        raise PoiseError(
            f"{file_name}: experiment.explains: {baseline} is the baseline and gains nothing"
        )
    if not options.rule:
        raise PoiseError(f"{file_name}: experiment.rule is missing: write down what would decide")


def parse_rate_shares(
    shares: Sequence[str], arms: Mapping[str, Any], file_name: str
) -> dict[str, float]:
    """["low=0.75"] -> {"low": 0.75}."""
    rate_shares = {}
    for arm, share in _split_by_arm("rate_shares", shares, arms, file_name).items():
        try:
            rate_shares[arm] = float(share)
        except ValueError:
            rate_shares[arm] = 0.0  # no share, so the error below is raised
        if not rate_shares[arm] > 0 or not math.isfinite(rate_shares[arm]):
            raise PoiseError(
                f"{file_name}: experiment.rate_shares: write ARM=SHARE, such as "
                f"{arm}=0.75, not '{arm}={share}'"
            )
    return rate_shares


def parse_engines(
    engines: Sequence[str], arms: Mapping[str, Any], file_name: str
) -> dict[str, str]:
    """["vllm=trl"] -> {"vllm": "trl"}."""
    engine_by_arm = _split_by_arm("engines", engines, arms, file_name)
    for engine in engine_by_arm.values():
        if engine not in RECORDING_ENGINES:
            fault = unknown_name("engine", engine, RECORDING_ENGINES)
            raise PoiseError(f"{file_name}: experiment.engines: {fault}")
    return engine_by_arm


def _split_by_arm(
    option_name: str, entries: Sequence[str], arms: Mapping[str, Any], file_name: str
) -> dict[str, str]:
    """["low=0.75"] -> {"low": "0.75"}; every arm at most once. Names of arms may contain "="."""
    text_by_arm = {}
    for entry in entries:
        arm, text = entry.rpartition("=")[::2] if "=" in entry else (entry, "")
        if arm not in arms:
            raise PoiseError(
                f"{file_name}: experiment.{option_name}: {unknown_name('arm', arm, arms)}"
            )
        if arm in text_by_arm:
            raise PoiseError(f"{file_name}: experiment.{option_name} names {arm} twice")
        text_by_arm[arm] = text
    return text_by_arm
