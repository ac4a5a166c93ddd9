"""The contents of a run folder, read once and shared by every panel of its report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.config.evaluation_settings import group_by_setting
from counterpoise.report.graded_rewards import has_graded_rewards
from counterpoise.report.texts import read_rollout_texts
from counterpoise.store.folder import RunFolder, is_imported
from counterpoise.store.logs import row_names
from counterpoise.store.schema import step_file_name
from counterpoise.store.stored_rollouts import RolloutLine


@dataclass(frozen=True, slots=True, eq=False)
class RunData:
    """The logs and the options of one run.

    Example:
        RunData.read(Path("out/demo")).metrics[0]["success"] == 0.609375
    """

    path: Path
    config: RunConfig
    metrics: list[dict[str, Any]]  # a record for each finished iteration
    plans: list[dict[str, Any]]  # a batch plan for each iteration that made an update
    evaluations: list[dict[str, Any]]  # iteration 0 is the policy before training
    benchmarks: list[dict[str, Any]] = field(default_factory=list)  # evaluate.benchmarks
    _texts: dict[int, tuple[RolloutLine, ...]] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, run_path: Path) -> RunData:
        """Read config.toml and the logs; rollouts are read when a panel asks for them."""
        run_folder = RunFolder.open(run_path)
        return cls(
            path=run_path,
            config=run_folder.read_config(),
            metrics=run_folder.read("metrics"),
            # With store.report = false a plan is stored without its rows and steps.
            plans=[plan for plan in run_folder.read("plans") if "steps" in plan],
            evaluations=run_folder.read("evaluations"),
            benchmarks=run_folder.read("benchmarks"),
        )

    @property
    def name(self) -> str:
        """Name of the run folder without its path: a report may be shared, a path is private."""
        return self.path.resolve().name

    @property
    def model_name(self) -> str:
        """The model that the run began with; "" for another trainer's run, which does not say."""
        return "" if is_imported(self.path) else self.config.model.name

    @property
    def is_graded(self) -> bool:
        """Whether rewards other than 0 and 1 occurred: then the mean reward is the headline."""
        return has_graded_rewards(self.metrics, self.evaluations)

    @property
    def heldout(self) -> list[Mapping[str, Any]]:
        """Held-out evaluations at the first sampling setting, the one the summary shows."""
        return next(iter(group_by_setting(self.evaluations).values()), [])

    @property
    def last_iteration(self) -> int:
        """Number of the last finished iteration; 0 when there is none."""
        return max((record["iteration"] for record in self.metrics), default=0)

    @property
    def axis_range(self) -> tuple[int, int]:
        """First and last iteration of the x axis, which begins at 0 for a run from its start."""
        logs = (self.metrics, self.evaluations, self.benchmarks)
        first = min((record.get("iteration", 0) for log in logs for record in log), default=0)
        last = max(self.last_iteration, 1)
        # A single iteration needs an axis of some width.
        return (0 if first <= 1 else min(first, last - 1)), last

    def rollouts(self, iteration: int) -> tuple[RolloutLine, ...]:
        """Rollouts sampled in `iteration`; empty when they were not stored."""
        if iteration not in self._texts:
            rollouts_path = self.path / step_file_name("rollouts", iteration)
            self._texts[iteration] = tuple(read_rollout_texts(rollouts_path))
        return self._texts[iteration]

    def texts_of_plan(self, plan: dict[str, Any]) -> list[RolloutLine | None]:
        """The text of every row of a plan; None where the rollout was not stored."""
        # A row may have waited in the buffer, so it is looked up in the iteration that sampled it.
        text_by_row = {
            (rollout_text.group, rollout_text.index): rollout_text
            for sampling_iteration in sorted(set(plan["born"]))
            for rollout_text in self.rollouts(sampling_iteration)
        }
        return [text_by_row.get(name) for name in row_names(plan)]
