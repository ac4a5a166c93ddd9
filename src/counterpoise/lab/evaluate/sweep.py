"""Choose the temperature and top-p of an evaluation, as in the paper's Table 4.

The paper takes the setting with the highest average over benchmarks on the aligned model; here that
is the last model named. Settings use the same seeds, so they are compared problem by problem, on
the problems that all of them have: a folder may hold a benchmark for some settings only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from counterpoise.config.evaluation_settings import EvaluationSetting, parse_grid
from counterpoise.errors import PoiseError
from counterpoise.lab.evaluate.result_files import JudgedProblem, ResultFile
from counterpoise.lab.evaluate.score import has_reward, mean_rewards, solved_shares
from counterpoise.statistics.prompt_intervals import (
    IntervalEstimate,
    average_estimates,
    mean_estimate,
    paired_difference,
)

# A value of every problem, such as its share of right samples.
ProblemValues = Callable[[Sequence[JudgedProblem]], list[float]]
ProblemKey = tuple[str, str, str]  # (id, text, answer)
TEMPERATURES, TOP_PS = (1.0, 0.6), (0.7, 0.95)  # Table 4


def parse_settings(temperature: str, top_p: str, *, sweep: bool) -> list[EvaluationSetting]:
    """The settings of --temperature and --top-p: all pairs of a sweep, else the only one.

    Example:
        >>> [str(setting) for setting in parse_settings("1.0", "0.7,0.95", sweep=True)]
        ['1/0.7', '1/0.95']
    """
    temperatures = parse_grid("--temperature", temperature, TEMPERATURES if sweep else (0.6,))
    top_ps = parse_grid("--top-p", top_p, TOP_PS if sweep else (0.95,))
    if not sweep and len(temperatures) * len(top_ps) > 1:
        raise PoiseError("several values of --temperature or --top-p are a sweep: add --sweep")
    return [EvaluationSetting(*pair) for pair in product(temperatures, top_ps)]


@dataclass(frozen=True, slots=True)
class SettingChoice:
    """The best setting of a model, and how far the others are from it.

    Example:
        SettingChoice("mine", best=EvaluationSetting(0.6, 0.95), mean=0.412,
                      differences={EvaluationSetting(1.0, 0.7): IntervalEstimate(...)})
    """

    model: str
    best: EvaluationSetting
    mean: float
    # Average of each other setting minus the best's, paired by problem.
    differences: dict[EvaluationSetting, IntervalEstimate]
    benchmarks: tuple[str, ...] = ()  # those that all settings have
    is_partial: bool = False  # some settings have further problems, which are left out
    graded: bool = False  # mean and differences are of rewards

    def indistinguishable(self) -> list[EvaluationSetting]:
        """Settings that these problems cannot distinguish from the best one."""
        return [setting for setting, gap in self.differences.items() if gap.high >= 0]

    def __str__(self) -> str:
        tied = self.indistinguishable()
        num_others = len(self.differences)
        comparison = (
            f"not distinguishable from {', '.join(map(str, tied))} by these problems"
            if tied
            else "ahead of the other"
            if num_others == 1
            else f"ahead of all {num_others} others"
        )
        mean = f"{self.mean:.3f}" if self.graded else f"{100 * self.mean:.1f} %"
        if self.is_partial:
            mean += f" on the problems of {', '.join(self.benchmarks)} that all settings have"
        return f"{self.model}: {self.best} ({mean}), {comparison}"


def choose_settings(
    result_files: Sequence[ResultFile], *, graded: bool = False
) -> list[SettingChoice]:
    """The choice of every model with several settings; that of the last model is the result.

    A model whose settings have no problem in common gets none.
    """
    by_model: dict[str, dict[EvaluationSetting, dict[str, ResultFile]]] = {}
    for result_file in result_files:
        files_by_benchmark = by_model.setdefault(result_file.header.model, {}).setdefault(
            result_file.header.setting, {}
        )
        files_by_benchmark[result_file.header.benchmark] = result_file
    choices = [
        choose_setting(model, files_by_setting, graded=graded)
        for model, files_by_setting in by_model.items()
        if len(files_by_setting) > 1
    ]
    return [choice for choice in choices if choice]


def choose_setting(
    model: str,
    files_by_setting: Mapping[EvaluationSetting, Mapping[str, ResultFile]],
    *,
    graded: bool = False,
) -> SettingChoice | None:
    """The best setting on the problems that all settings have; None if there is no such problem."""
    values = mean_rewards if graded else solved_shares
    common = common_problems(list(files_by_setting.values()))
    if not common:
        return None
    means = {
        setting: _mean(
            [values(select_problems(files[name], keys)) for name, keys in common.items()]
        )
        for setting, files in files_by_setting.items()
    }
    best = max(means, key=lambda setting: means[setting])
    differences = {
        setting: paired_result_difference(files, files_by_setting[best], values, common)
        for setting, files in files_by_setting.items()
        if setting != best
    }
    is_partial = any(
        len(scored_problems(result_file)) > len(common.get(name, ()))
        for files in files_by_setting.values()
        for name, result_file in files.items()
    )
    return SettingChoice(
        model,
        best,
        means[best],
        {setting: difference for setting, difference in differences.items() if difference},
        tuple(common),
        is_partial,
        graded,
    )


def common_problems(sides: Sequence[Mapping[str, ResultFile]]) -> dict[str, list[ProblemKey]]:
    """By benchmark: the problems with a reward on all sides; a benchmark without any is left out.

    A problem is the same one if its text and its answer are, not only its id.
    """
    common = {}
    for name, result_file in sides[0].items():
        others = [scored_problems(side[name]) if name in side else {} for side in sides[1:]]
        keys = [
            key for key in scored_problems(result_file) if all(key in other for other in others)
        ]
        if keys:
            common[name] = keys
    return common


def paired_result_difference(
    after: Mapping[str, ResultFile],
    before: Mapping[str, ResultFile],
    values: ProblemValues = solved_shares,
    problems: Mapping[str, Sequence[ProblemKey]] | None = None,
) -> IntervalEstimate | None:
    """Mean over benchmarks of the paired differences; None if there is no problem to compare on.

    The problems are those that both sides have, unless given, by benchmark.
    """
    estimates = []
    for name, keys in (problems or common_problems([before, after])).items():
        after_P = values(select_problems(after[name], keys))
        before_P = values(select_problems(before[name], keys))
        # Differences of shares have bounds, those of rewards have none.
        estimates.append(
            mean_estimate([x - y for x, y in zip(after_P, before_P, strict=True)])
            if values is mean_rewards
            else paired_difference(after_P, before_P)
        )
    return average_estimates(estimates) if estimates else None


def scored_problems(result_file: ResultFile) -> dict[ProblemKey, JudgedProblem]:
    return {
        (problem.id, problem.problem, problem.answer): problem
        for problem in result_file.judged.values()
        if has_reward(problem)
    }


def select_problems(result_file: ResultFile, keys: Sequence[ProblemKey]) -> list[JudgedProblem]:
    problems = scored_problems(result_file)
    return [problems[key] for key in keys]


def _mean(values_per_benchmark: Sequence[Sequence[float]]) -> float:
    """Every benchmark has the same weight, however many problems it has."""
    return sum(sum(values) / len(values) for values in values_per_benchmark) / len(
        values_per_benchmark
    )
