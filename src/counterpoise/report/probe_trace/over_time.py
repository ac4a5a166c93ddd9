"""Which training prompts moved the held-out answers, update by update: for pages.

influence of a prompt in an update = lr * sum of its rows' pushes on the right answers, averaged
over these answers
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from counterpoise.report.probe_trace.agreement import Agreement, AgreementMeter
from counterpoise.report.probe_trace.read import ProbedIteration, ProbedRun

SHOWN_PROMPTS = 15  # in each direction
MAX_UPDATES = 200  # only the latest are read: each has files of its own, which takes time


@dataclass(frozen=True, slots=True)
class UpdateInfluence:
    """What the rows of one prompt did in one update: those of all its groups, added up."""

    iteration: int
    group: str  # the group of the prompt that changed most
    row: int  # the first row of that group in the plan
    change: float  # predicted, of the right answers' mean log-probability, in nats


@dataclass(slots=True)
class PromptInfluence:
    """One training prompt over the run."""

    prompt_id: str
    updates: list[UpdateInfluence] = field(default_factory=list)

    @property
    def total(self) -> float:
        return sum(update.change for update in self.updates)

    @property
    def moving(self) -> int:
        """In how many updates it moved the right answers: at learning rate 0 it does not."""
        return sum(update.change != 0 for update in self.updates)

    @property
    def raising(self) -> int:
        """In how many updates it raised the mean log-probability of the right answers."""
        return sum(update.change > 0 for update in self.updates)


@dataclass(frozen=True, slots=True)
class UpdateMovement:
    """Held-out answers in one update; means over answers, in nats. None: no such answer."""

    iteration: int
    right: float | None
    wrong: float | None
    predicted: float | None  # of the right answers


@dataclass(frozen=True, slots=True, eq=False)
class InfluenceOverTime:
    """What a page shows of a traced run."""

    updates: list[UpdateMovement]
    raising: list[PromptInfluence]  # strongest first
    lowering: list[PromptInfluence]
    num_prompts: int
    num_problems: int
    left_out: int  # earlier updates that are not in these numbers
    agreement: Agreement


def trace_over_time(
    probed_run: ProbedRun, shown: int = SHOWN_PROMPTS, max_updates: int = MAX_UPDATES
) -> InfluenceOverTime:
    """Follow all training prompts through the latest updates of the run."""
    latest = replace(probed_run, iterations=probed_run.iterations[-max_updates:])
    meter = AgreementMeter(latest)
    updates: list[UpdateMovement] = []
    prompts: dict[str, PromptInfluence] = {}
    for probed in latest.read():
        meter.add(probed)
        is_right = np.array([answer["reward"] > 0 for answer in probed.answers])
        moved_Q, predicted_Q = probed.moved_Q(), probed.predicted_Q()
        updates.append(
            UpdateMovement(
                probed.iteration,
                float(moved_Q[is_right].mean()) if is_right.any() else None,
                float(moved_Q[~is_right].mean()) if not is_right.all() else None,
                float(predicted_Q[is_right].mean()) if is_right.any() else None,
            )
        )
        if is_right.any():
            for prompt_id, influence in _influence_by_prompt(
                probed, np.flatnonzero(is_right)
            ).items():
                prompts.setdefault(prompt_id, PromptInfluence(prompt_id)).updates.append(influence)
    ordered = sorted(prompts.values(), key=lambda prompt: -prompt.total)
    return InfluenceOverTime(
        updates=updates,
        raising=[prompt for prompt in ordered if prompt.total > 0][:shown],
        lowering=[prompt for prompt in reversed(ordered) if prompt.total < 0][:shown],
        num_prompts=len(prompts),
        num_problems=len(probed_run.problem_ids),
        left_out=len(probed_run.iterations) - len(latest.iterations),
        agreement=meter.result(),
    )


def _influence_by_prompt(
    probed: ProbedIteration, answers: np.ndarray
) -> dict[str, UpdateInfluence]:
    """How far each prompt's rows are predicted to move the mean log-probability of `answers`.

    A prompt has several groups in an update if rows of an earlier iteration had waited for it.
    """
    chosen = np.isin(probed.rows["answer"], answers)
    rows = probed.rows["row"][chosen].astype(np.int64)
    pushes_R = np.bincount(rows, probed.rows["push"][chosen].astype(np.float64))
    changes: dict[str, float] = {}
    first_row: dict[str, int] = {}
    for row in np.unique(rows).tolist():
        group = probed.group_of_row(row)
        change = probed.lr / len(answers) * float(pushes_R[row])
        changes[group] = changes.get(group, 0.0) + change
        first_row.setdefault(group, row)
    influences: dict[str, UpdateInfluence] = {}
    for group in sorted(changes, key=lambda group: -abs(changes[group])):  # strongest first
        prompt_id, change = probed.prompt_of_group[group], changes[group]
        if earlier := influences.get(prompt_id):
            influences[prompt_id] = replace(earlier, change=earlier.change + change)
        else:
            influences[prompt_id] = UpdateInfluence(
                probed.iteration, group, first_row[group], change
            )
    return influences
