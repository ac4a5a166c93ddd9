"""Held-out success of several runs, by how it was sampled: only like is compared with like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.config.evaluation_settings import Setting, by_setting
from counterpoise.plugins import content
from counterpoise.report.compare.compared_runs import ComparedRun

Evaluation = Mapping[str, Any]  # a line of evaluations.jsonl


@dataclass(frozen=True, slots=True)
class HeldoutResults:
    """One way of sampling, and what it found of every run, in the order of training."""

    setting: Setting
    only_setting: bool  # there is no other one on the page, so it need not be named
    evaluations: tuple[tuple[Evaluation, ...], ...]  # by run; empty: not judged so

    @property
    def how(self) -> str:
        return "" if self.only_setting else f" at {self.setting}"

    def first(self, place: int) -> Evaluation | None:
        return next(iter(self.evaluations[place]), None)

    def last(self, place: int) -> Evaluation | None:
        """None where there is but one: nothing came after it."""
        return self.evaluations[place][-1] if len(self.evaluations[place]) > 1 else None


def heldout_by_setting(compared: Sequence[ComparedRun]) -> list[HeldoutResults]:
    """The first run's first setting first."""
    found: dict[Setting, dict[int, list[Evaluation]]] = {}
    for place, one in enumerate(compared):
        sample = one.run.config.sample
        for setting, lines in by_setting(one.run.evaluations).items():
            key = setting or Setting(sample.temperature, sample.top_p)
            found.setdefault(key, {}).setdefault(place, []).extend(lines)
    return [
        HeldoutResults(
            setting,
            len(found) == 1,
            tuple(
                tuple(sorted(of.get(place, ()), key=lambda e: e["iteration"]))
                for place in range(len(compared))
            ),
        )
        for setting, of in found.items()
    ]


def same_problems(compared: Sequence[ComparedRun]) -> bool:
    """Whether the runs that were judged were judged by the same problems, as far as options say."""
    sets = [
        (config.task, config.evaluate.prompts)
        for one in compared
        if one.run.evaluations and (config := one.config)
    ]
    return all(one == sets[0] for one in sets)


def same_reward(compared: Sequence[ComparedRun]) -> bool:
    """Whether one reward decided what success is; a function of the user's by its content.

    Held-out problems and training prompts are judged by it alike.
    """
    return len({content(config.verify.name) for one in compared if (config := one.config)}) < 2
