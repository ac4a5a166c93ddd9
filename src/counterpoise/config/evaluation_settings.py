"""Evaluation settings: the temperature and top-p at which held-out problems are sampled.

    "training"    sample.temperature, sample.top_p and sample.top_k: what training optimises
    "0.6/0.95"    temperature 0.6, top-p 0.95, no top-k: what papers report

Temperature and top-p alone identify a setting: "1/1" is the training setting, with its top-k, where
training samples at temperature 1 and top-p 1.

A run names its settings in `evaluate.settings`; titles and verdicts use the first.
evaluations.jsonl has one line per iteration and setting. Lines of older runs do not name a setting;
they were sampled as in training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from counterpoise.config import SampleConfig
from counterpoise.errors import PoiseError

TRAINING_SETTING = "training"
MOST_SAMPLES = 100_000


@dataclass(frozen=True, slots=True)
class EvaluationSetting:
    """Example: str(EvaluationSetting(0.6, 0.95)) == "0.6/0.95" """

    temperature: float
    top_p: float

    def __str__(self) -> str:
        return f"{self.temperature:g}/{self.top_p:g}"

    def apply_to(self, sample: SampleConfig) -> SampleConfig:
        """The sampling options of training with this temperature and top-p, and without top-k.

        The training setting itself keeps its top-k.
        """
        if self == EvaluationSetting(sample.temperature, sample.top_p):
            return sample
        return replace(sample, temperature=self.temperature, top_p=self.top_p, top_k=0)


def parse_setting(setting_text: str, sample: SampleConfig) -> EvaluationSetting:
    """Read one entry of `evaluate.settings`; "training" stands for the options in `sample`.

    Example:
        >>> parse_setting("0.6/0.95", SampleConfig())
        EvaluationSetting(temperature=0.6, top_p=0.95)
        >>> parse_setting("training", SampleConfig())
        EvaluationSetting(temperature=1.0, top_p=1.0)
    """
    if setting_text == TRAINING_SETTING:
        return EvaluationSetting(sample.temperature, sample.top_p)
    try:
        temperature, top_p = (float(number) for number in setting_text.split("/"))
    except ValueError:
        temperature, top_p = 0.0, 0.0  # outside the limits below
    if not (1e-3 <= temperature < 1e3 and 1e-6 <= top_p <= 1):
        raise PoiseError(
            f"evaluate.settings: '{setting_text}' is not a setting: write 'training', or a "
            "temperature and a top-p such as '0.6/0.95'"
        )
    return EvaluationSetting(temperature, top_p)


def parse_settings(names: Sequence[str], sample: SampleConfig) -> tuple[EvaluationSetting, ...]:
    """The settings in the order of the run file; a repeated one is an error."""
    settings = tuple(parse_setting(name, sample) for name in names)
    if len(set(settings)) < len(settings):
        raise PoiseError(f"evaluate.settings names a setting twice: {', '.join(names)}")
    return settings


def parse_benchmarks(entries: Sequence[str]) -> dict[str, int]:
    """The benchmarks of `evaluate.benchmarks` and their samples; 0: as many as the benchmark says.

    Example:
        >>> parse_benchmarks(["aime24=8", "math500"])
        {'aime24': 8, 'math500': 0}
    """
    samples_by_name: dict[str, int] = {}
    for entry in entries:
        name, equals, samples_text = (piece.strip() for piece in entry.partition("="))
        samples = parse_samples(samples_text) if equals else 0
        if not name or samples is None:
            raise PoiseError(
                f"evaluate.benchmarks: '{entry}' is not a benchmark: write NAME, or NAME=SAMPLES "
                "such as 'aime24=8'"
            )
        if name in samples_by_name:
            raise PoiseError(f"evaluate.benchmarks names {name} twice")
        samples_by_name[name] = samples
    return samples_by_name


def parse_samples(samples_text: str) -> int | None:
    """Samples per problem; None if the text is no whole number from 1 to MOST_SAMPLES.

    Example:
        >>> parse_samples("8"), parse_samples("0"), parse_samples("many")
        (8, None, None)
    """
    # The length comes first: Python refuses to read a number of thousands of digits.
    if not samples_text.isdecimal() or len(samples_text) > len(str(MOST_SAMPLES)):
        return None
    samples = int(samples_text)
    return samples if 1 <= samples <= MOST_SAMPLES else None


def group_by_setting(
    evaluations: Sequence[Mapping[str, Any]],
) -> dict[EvaluationSetting | None, list[Mapping[str, Any]]]:
    """Lines of evaluations.jsonl by setting, in order of first appearance.

    The key None holds lines of older runs, which sampled as in training.
    """
    records_by_setting: dict[EvaluationSetting | None, list[Mapping[str, Any]]] = {}
    for record in evaluations:
        has_setting = "temperature" in record
        setting = EvaluationSetting(record["temperature"], record["top_p"]) if has_setting else None
        records_by_setting.setdefault(setting, []).append(record)
    return records_by_setting


def parse_grid(option: str, numbers_text: str, default: Sequence[float]) -> list[float]:
    """The numbers of a comma-separated list, each a temperature or a top-p that can be sampled.

    Example:
        >>> parse_grid("--top-p", "0.7,0.95", (0.95,)), parse_grid("--temperature", "", (0.6,))
        ([0.7, 0.95], [0.6])
    """
    upper_limit = 1.0 if option == "--top-p" else 1e3
    values = list(default)
    if numbers_text:
        try:
            values = [float(number) for number in numbers_text.split(",")]
        except ValueError:
            values = [0.0]  # outside the limits below
    if len(set(values)) < len(values) or not all(1e-3 <= value <= upper_limit for value in values):
        raise PoiseError(
            f"{option} {numbers_text}: give distinct numbers from 0.001 to {upper_limit:g}, "
            "separated by commas"
        )
    return values
