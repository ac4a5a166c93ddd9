"""A run folder, read once: what every panel is drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.config.evaluation_settings import by_setting
from counterpoise.report.texts import RolloutText, read_rollout_texts
from counterpoise.store.folder import RunFolder


@dataclass(frozen=True, slots=True, eq=False)
class RunData:
    """Example: RunData.read(Path("out/demo")).metrics[0]["success"] == 0.609375"""

    path: Path
    config: RunConfig
    metrics: list[dict[str, Any]]  # a record for each finished iteration
    plans: list[dict[str, Any]]  # a record for each iteration that made an update, with its rows
    evaluations: list[dict[str, Any]]  # iteration 0 is the policy before training
    _texts: dict[int, tuple[RolloutText, ...]] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, path: Path) -> RunData:
        folder = RunFolder.open(path)
        return cls(
            path=path,
            config=folder.config(),
            metrics=folder.read("metrics"),
            plans=[plan for plan in folder.read("plans") if "steps" in plan],  # else short ones
            evaluations=folder.read("evaluations"),
        )

    @property
    def name(self) -> str:
        """Of the folder; where it lies is nobody's business but the machine's."""
        return self.path.resolve().name

    @property
    def heldout(self) -> list[Mapping[str, Any]]:
        """The evaluations of the first setting, which titles go by."""
        return next(iter(by_setting(self.evaluations).values()), [])

    @property
    def last_iteration(self) -> int:
        """The last finished iteration; 0 when there is none."""
        return max((record["iteration"] for record in self.metrics), default=0)

    def rollouts(self, iteration: int) -> tuple[RolloutText, ...]:
        """What was sampled in `iteration`; empty when it was not stored."""
        if iteration not in self._texts:
            file = self.path / "rollouts" / f"step_{iteration:05d}.jsonl"
            self._texts[iteration] = tuple(read_rollout_texts(file))
        return self._texts[iteration]

    def texts_of_plan(self, plan: dict[str, Any]) -> list[RolloutText | None]:
        """Of the plan's rows; one that waited in the buffer is found where it was sampled."""
        known = {
            (text.group, text.index): text
            for born in sorted(set(plan["born"]))
            for text in self.rollouts(born)
        }
        return [
            known.get((plan["groups"][group], index))
            for group, index in zip(plan["group"], plan["index"], strict=True)
        ]
