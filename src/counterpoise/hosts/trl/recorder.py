"""What both recorders of TRL runs share: an iteration that is under way, and its record.

run_recorder.py writes the run folder of `poise train --engine trl`, with the native engine's files,
checkpoints and evaluations. script_recorder.py writes the `run_folder` of a trainer in a user's own
script. An iteration is one generation: with RB several may pass before an update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from counterpoise.batch.describe import describe_plan
from counterpoise.batch.dropped_rollouts import find_drops
from counterpoise.hosts.trl.planner import Decision
from counterpoise.microscope.monitor import StepMeasurement
from counterpoise.run import metrics
from counterpoise.types import Group, Rollout, Row, StepResult
from counterpoise.verify.scores import Scores


@dataclass(slots=True, eq=False)
class OpenIteration:
    """An iteration between its sampling and its last optimizer step."""

    number: int
    waiting: list[Row]  # in the buffer before this iteration was sampled
    clock: metrics.StageClock = field(default_factory=metrics.StageClock)
    groups: list[Group] = field(default_factory=list)
    decision: Decision | None = None
    batch: list[Row] = field(default_factory=list)  # the decision's rows, with their rollouts

    def set_groups(self, rollouts: Sequence[Rollout], names: Sequence[str]) -> None:
        """Cut the rollouts into groups of equal size, one for each name."""
        G = len(rollouts) // len(names)
        self.groups = [
            Group(f"{self.number}:{name}", self.number, tuple(rollouts[g * G : (g + 1) * G]))
            for g, name in enumerate(names)
        ]

    def finish(
        self,
        *,
        scores: Scores,
        credited: list[list[Row]],
        results: list[StepResult],
        measurements: list[StepMeasurement],
        still_waiting: list[Row],
        max_age: int,
    ) -> metrics.IterationResult:
        """The iteration as the native engine records it."""
        plan = self.decision.plan if self.decision else None
        candidates = [*self.waiting, *(row for group in credited for row in group)]
        oldest = self.number - max_age
        return metrics.IterationResult(
            number=self.number,
            groups=self.groups,
            scores=scores,
            credited_groups=credited,
            batch=self.batch,
            plan=plan,
            description=describe_plan(self.batch, plan) if plan else None,
            results=results,
            measurements=measurements,
            drops=find_drops([], candidates, self.batch, still_waiting, oldest),
        )
