"""Choose the temperature and top-p of an evaluation, as in the paper's Table 4.

The paper takes the setting with the highest average over benchmarks on the aligned model; here that
is the last model named. Settings use the same seeds and problems, so they are compared problem by
problem, which shows which of the others are really worse.
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
        return f"{self.model}: {self.best} ({mean}), {comparison}"


def choose_settings(
    result_files: Sequence[ResultFile], *, graded: bool = False
) -> list[SettingChoice]:
    """The choice of every model with several settings; that of the last model is the result."""
    by_model: dict[str, dict[EvaluationSetting, dict[str, ResultFile]]] = {}
    for result_file in result_files:
        files_by_benchmark = by_model.setdefault(result_file.header.model, {}).setdefault(
            result_file.header.setting, {}
        )
        files_by_benchmark[result_file.header.benchmark] = result_file
    return [
        choose_setting(model, files_by_setting, graded=graded)
        for model, files_by_setting in by_model.items()
        if len(files_by_setting) > 1
    ]


def choose_setting(
    model: str,
    files_by_setting: Mapping[EvaluationSetting, Mapping[str, ResultFile]],
    *,
    graded: bool = False,
) -> SettingChoice:
    values = mean_rewards if graded else solved_shares
    means = {setting: _mean(benchmarks, values) for setting, benchmarks in files_by_setting.items()}
    best = max(means, key=lambda setting: means[setting])
    differences = {
        setting: paired_result_difference(files_by_setting[setting], files_by_setting[best], values)
        for setting in files_by_setting
        if setting != best
    }
    return SettingChoice(model, best, means[best], differences, graded)


def paired_result_difference(
    after: Mapping[str, ResultFile],
    before: Mapping[str, ResultFile],
    values: ProblemValues = solved_shares,
) -> IntervalEstimate:
    """Mean over benchmarks of the paired differences, on problems that both have."""
    estimates = []
    for name in before:
        after_problems = _scored_problems(after[name]) if name in after else {}
        # Paired differences need problems that both sides have judged.
        before_problems = {
            problem_id: problem
            for problem_id, problem in _scored_problems(before[name]).items()
            if problem_id in after_problems
        }
        if before_problems:
            after_P = values([after_problems[problem_id] for problem_id in before_problems])
            before_P = values(list(before_problems.values()))
            # Differences of shares have bounds, those of rewards have none.
            estimates.append(
                mean_estimate([x - y for x, y in zip(after_P, before_P, strict=True)])
                if values is mean_rewards
                else paired_difference(after_P, before_P)
            )
    return average_estimates(estimates) if estimates else IntervalEstimate(0.0, -1.0, 1.0)


def _scored_problems(result_file: ResultFile) -> dict[str, JudgedProblem]:
    return {
        problem_id: problem
        for problem_id, problem in result_file.judged.items()
        if has_reward(problem)
    }


def _mean(benchmarks: Mapping[str, ResultFile], values: ProblemValues = solved_shares) -> float:
    shares_per_benchmark = [
        values(list(problems.values()))
        for result_file in benchmarks.values()
        if (problems := _scored_problems(result_file))
    ]
    return (
        sum(sum(shares) / len(shares) for shares in shares_per_benchmark)
        / len(shares_per_benchmark)
        if shares_per_benchmark
        else 0.0
    )
