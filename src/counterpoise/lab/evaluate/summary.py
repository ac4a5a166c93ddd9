"""Summary of an evaluation: scores of every benchmark, averages, differences to the first model.

An average is the plain mean over benchmarks, as in the paper; it needs results of every benchmark.
Models are compared problem by problem, on the problems that both have. Files of one command have
the same seeds and limits; where those of different commands do not, the summary says so beside the
difference. Where avg@n rises and pass@n does not, a model solves the same problems more reliably
but no new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from counterpoise.config.evaluation_settings import EvaluationSetting
from counterpoise.lab.evaluate.result_files import (
    SCHEMA,
    ResultFile,
    ResultHeader,
    read_result_files,
    write_json,
)
from counterpoise.lab.evaluate.score import (
    BenchmarkScore,
    mean_rewards,
    score_benchmark,
    solved_any,
    solved_shares,
)
from counterpoise.lab.evaluate.sweep import SettingChoice, choose_settings, paired_result_difference
from counterpoise.report.charts.render import nan_to_none
from counterpoise.statistics.prompt_intervals import IntervalEstimate, average_estimates
from counterpoise.verify.scores import are_binary

# Settings that must be equal for a difference to be due to the models; templates may differ.
COMPARED_SETTINGS = (
    "samples", "max_new_tokens", "verifier", "seed", "problems_digest", "sampler", "dtype",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """A row of the table: one model at one sampling setting."""

    model: str
    setting: EvaluationSetting
    scores: dict[str, BenchmarkScore]  # by benchmark
    average: IntervalEstimate | None  # None: a benchmark is missing, or there is only one
    # By benchmark: this model minus the first one at the same setting.
    differences: dict[str, IntervalEstimate]
    average_difference: IntervalEstimate | None
    # The same for pass@n, where both have the same number of samples, more than one.
    pass_differences: dict[str, IntervalEstimate]
    # By benchmark: settings that are not those of the first model, which also move the difference.
    # Example: {"math500": {"max_new_tokens": (8192, 924)}}, this model's and the first one's.
    unequal_settings: dict[str, dict[str, tuple[Any, Any]]]

    @property
    def is_complete(self) -> bool:
        """Whether every benchmark that was begun is finished."""
        return all(score.is_complete for score in self.scores.values())


@dataclass(frozen=True, slots=True)
class EvaluationSummary:
    benchmarks: list[str]
    titles: dict[str, str]
    lines: list[SummaryLine]
    choices: list[SettingChoice]  # for models with several sampling settings

    @property
    def graded(self) -> bool:
        """Whether the scores are mean rewards instead of shares of right samples."""
        return any(score.graded for line in self.lines for score in line.scores.values())

    @property
    def has_sweep(self) -> bool:
        return len({line.setting for line in self.lines}) > 1

    @property
    def has_differences(self) -> bool:
        return any(line.differences for line in self.lines)

    @property
    def is_complete(self) -> bool:
        """Whether every benchmark that was begun is finished, for all models."""
        return all(line.is_complete for line in self.lines)

    def describe_unequal_settings(self) -> list[str]:
        """A sentence for each model and benchmark with other settings than the first model.

        Example:
            "b, math500: evaluated differently from a (max_new_tokens 8192 instead of 924)"
        """
        sentences = []
        for line in self.lines:
            setting = f" {line.setting}" if self.has_sweep else ""
            for name, settings in line.unequal_settings.items():
                details = ", ".join(
                    "other problems in the file"
                    if field == "problems_digest"
                    else f"{field} {value} instead of {first}"
                    for field, (value, first) in settings.items()
                )
                first_model = self.lines[0].model
                sentences.append(
                    f"{line.model}{setting}, {name}: evaluated differently from {first_model} "
                    f"({details})"
                )
        return sentences

    def to_json(self) -> dict[str, Any]:
        """All numbers; bounds that are not known are None."""
        data: dict[str, Any] = {
            "schema": SCHEMA,
            "scores": [score.to_json() for line in self.lines for score in line.scores.values()],
            "averages": [
                {**_key(line), **asdict(line.average)} for line in self.lines if line.average
            ],
            "against_first": [
                {**_key(line), "benchmark": name, "difference": estimate.mean,
                 "low": estimate.low, "high": estimate.high}
                for line in self.lines
                for name, estimate in _against(line).items()
            ],
            "against_first_pass_at_n": [
                {**_key(line), "benchmark": name, "difference": estimate.mean,
                 "low": estimate.low, "high": estimate.high}
                for line in self.lines
                for name, estimate in line.pass_differences.items()
            ],
            "unequal_settings": [
                {**_key(line), "benchmark": name,
                 "settings": {field: list(values) for field, values in settings.items()}}
                for line in self.lines
                for name, settings in line.unequal_settings.items()
            ],
            "sweep": [
                {"model": choice.model, **asdict(choice.best), "mean": choice.mean,
                 "benchmarks": list(choice.benchmarks), "is_partial": choice.is_partial,
                 "not_told_apart": [asdict(setting) for setting in choice.indistinguishable()]}
                for choice in self.choices
            ],
        }  # fmt: skip
        return {field: nan_to_none(value) for field, value in data.items()}


def summarise(result_files: Sequence[ResultFile]) -> EvaluationSummary:
    files_by_line: dict[tuple[str, EvaluationSetting], dict[str, ResultFile]] = {}
    for result_file in result_files:
        if result_file.judged:
            line_key = (result_file.header.model, result_file.header.setting)
            files_by_line.setdefault(line_key, {})[result_file.header.benchmark] = result_file
    # If one benchmark is graded, all are scored as graded, because their scores are averaged.
    graded = any(
        not are_binary(problem.rewards)
        for result_file in result_files
        for problem in result_file.judged.values()
    )
    benchmarks = list(dict.fromkeys(result_file.header.benchmark for result_file in result_files))
    # The first model is the baseline of all differences.
    first_model = next(iter(files_by_line), ("", None))[0]
    lines = [
        _line(
            model,
            setting,
            files,
            benchmarks,
            files_by_line.get((first_model, setting)) if model != first_model else None,
            graded=graded,
        )
        for (model, setting), files in files_by_line.items()
    ]
    titles = {
        result_file.header.benchmark: result_file.header.title for result_file in result_files
    }
    judged_files = [
        result_file for files in files_by_line.values() for result_file in files.values()
    ]
    choices = choose_settings(judged_files, graded=graded)
    return EvaluationSummary(benchmarks, titles, lines, choices)


def write_summary(folder: Path) -> EvaluationSummary:
    """Write summary.json from the result files."""
    summary = summarise(read_result_files(folder))
    write_json(folder / "summary.json", summary.to_json())
    return summary


def _line(
    model: str,
    setting: EvaluationSetting,
    result_files: dict[str, ResultFile],
    names: Sequence[str],
    first: dict[str, ResultFile] | None,
    *,
    graded: bool,
) -> SummaryLine:
    benchmark_scores = {
        name: score_benchmark(result_files[name], graded=graded)
        for name in names
        if name in result_files
    }
    scores = {name: score for name, score in benchmark_scores.items() if score}
    paired_difference = partial(
        paired_result_difference, values=mean_rewards if graded else solved_shares
    )
    # An average over fewer benchmarks than the other lines have would not be comparable.
    is_comparable = len(scores) == len(names) and len(names) > 1
    differences = {
        name: difference
        for name in scores
        if first is not None
        and name in first
        and (difference := paired_difference({name: result_files[name]}, {name: first[name]}))
    }
    return SummaryLine(
        model,
        setting,
        scores,
        average_estimates([score.average for score in scores.values()]) if is_comparable else None,
        differences,
        paired_difference(result_files, first)
        if first is not None and len(differences) == len(names) > 1
        else None,
        {
            name: difference
            for name in differences
            if first is not None
            and not graded
            and result_files[name].header.samples == first[name].header.samples > 1
            and (
                difference := paired_result_difference(
                    {name: result_files[name]}, {name: first[name]}, solved_any
                )
            )
        },
        {
            name: settings
            for name in differences
            if first is not None
            and (settings := _unequal_settings(result_files[name].header, first[name].header))
        },
    )


def _unequal_settings(header: ResultHeader, first: ResultHeader) -> dict[str, tuple[Any, Any]]:
    pairs = {field: (getattr(header, field), getattr(first, field)) for field in COMPARED_SETTINGS}
    return {field: pair for field, pair in pairs.items() if pair[0] != pair[1]}


def _against(line: SummaryLine) -> dict[str, IntervalEstimate]:
    overall = {"average": line.average_difference} if line.average_difference else {}
    return line.differences | overall


def _key(line: SummaryLine) -> dict[str, Any]:
    return {"model": line.model, **asdict(line.setting)}
