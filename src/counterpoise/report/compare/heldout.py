"""Held-out success or reward of several runs, compared only at equal sampling settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from counterpoise.config.evaluation_settings import EvaluationSetting, group_by_setting
from counterpoise.plugins import name_without_location
from counterpoise.report.compare.compared_runs import ComparedRun
from counterpoise.report.panels.summary import headline_record

Evaluation = Mapping[str, Any]  # a line of evaluations.jsonl


@dataclass(frozen=True, slots=True)
class HeldoutResults:
    """Evaluations of every run at one sampling setting, in the order of training."""

    setting: EvaluationSetting
    only_setting: bool  # whether it is the only one on the page, so that no title need name it
    evaluations: tuple[tuple[Evaluation, ...], ...]  # by run; empty: not evaluated at this setting
    graded: bool = False  # whether mean, low and high of the evaluations are those of rewards

    @property
    def quantity(self) -> str:
        return "reward" if self.graded else "success"

    @property
    def suffix(self) -> str:
        """The setting as the end of a title, " at 0.6/0.95"; empty if there is only one."""
        return "" if self.only_setting else f" at {self.setting}"

    def first(self, run_index: int) -> Evaluation | None:
        """The first evaluation of a run; None if it was not evaluated."""
        return next(iter(self.evaluations[run_index]), None)

    def last(self, run_index: int) -> Evaluation | None:
        """The last evaluation of a run; None if it has fewer than two."""
        return self.evaluations[run_index][-1] if len(self.evaluations[run_index]) > 1 else None


def heldout_by_setting(runs: Sequence[ComparedRun]) -> list[HeldoutResults]:
    """Evaluations grouped by sampling setting; the first run's first setting comes first."""
    graded = any_graded(runs)
    evaluations_by_setting: dict[EvaluationSetting, dict[int, list[Evaluation]]] = {}
    for run_index, run in enumerate(runs):
        sample_config = run.data.config.sample
        for setting, evaluations in group_by_setting(run.data.evaluations).items():
            # An evaluation without a stored setting was sampled as in training.
            run_setting = setting or EvaluationSetting(
                sample_config.temperature, sample_config.top_p
            )
            evaluations_by_run = evaluations_by_setting.setdefault(run_setting, {})
            evaluations_by_run.setdefault(run_index, []).extend(
                map(headline_record, evaluations) if graded else evaluations
            )
    return [
        HeldoutResults(
            setting,
            len(evaluations_by_setting) == 1,
            tuple(
                tuple(sorted(evaluations_by_run.get(run_index, ()), key=itemgetter("iteration")))
                for run_index in range(len(runs))
            ),
            graded,
        )
        for setting, evaluations_by_run in evaluations_by_setting.items()
    ]


def any_graded(runs: Sequence[ComparedRun]) -> bool:
    """Whether rewards are graded in any run: then all runs are compared by their mean reward."""
    return any(run.data.is_graded for run in runs)


def same_problems(runs: Sequence[ComparedRun]) -> bool:
    """Whether all evaluated runs used the same held-out problems, judging by their options."""
    problem_sets = [
        (config.task, config.evaluate.prompts)
        for run in runs
        if run.data.evaluations and (config := run.config)
    ]
    return all(problems == problem_sets[0] for problems in problem_sets)


def same_reward(runs: Sequence[ComparedRun]) -> bool:
    """Whether all runs share one reward function; a user's own is compared by its content.

    The same function scores held-out problems and training prompts.
    """
    reward_names = {
        name_without_location(config.verify.name) for run in runs if (config := run.config)
    }
    return len(reward_names) < 2
