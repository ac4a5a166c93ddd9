"""A stock trainer as the recorder and the monitor see it, for PoiseCallback (callback.py)."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from trl import GRPOTrainer, RLOOTrainer

from counterpoise.hosts.trl.monitor import StepMonitor, dapo_loss_scale
from counterpoise.hosts.trl.native_policy import as_native_policy, new_micro_batch
from counterpoise.hosts.trl.padding import UnpaddedRollout
from counterpoise.hosts.trl.planner import Decision, RolloutKey
from counterpoise.hosts.trl.script_recorder import ScriptRecorder, describe_run
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.load import Policy
from counterpoise.types import Row


class ObservedPlans:
    """What the recorder reads of a planner: TRL's rows, without a buffer."""

    buffer = None
    max_age = 0

    def __init__(self) -> None:
        self.credited_groups: list[list[Row]] = []  # of the latest generation


class ObservedTrainer:
    """A stock trainer with what the recorder and the monitor read of `PoiseGRPOTrainer`.

    Everything else is the trainer's own attribute.
    """

    records_tokens = True  # of every step, from TRL's loss
    probes = None  # held-out answers are followed by our own trainer

    def __init__(self, trainer: GRPOTrainer | RLOOTrainer, path: Path, monitor_every: int) -> None:
        self.stock = trainer
        self.monitor_every = monitor_every
        self.planner = ObservedPlans()
        self.rollouts_by_key: dict[RolloutKey, UnpaddedRollout] = {}
        self._generation = 0  # the number of the latest generation
        self.script_recorder: ScriptRecorder | None = None
        self.monitor = StepMonitor(self) if monitor_every else None
        if trainer.accelerator.is_main_process:
            self.script_recorder = ScriptRecorder(self, path, describe_stock_run)

    @property
    def asking_option(self) -> str:
        """The option that asked for the monitor."""
        return "monitor_every"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stock, name)

    @cached_property
    def policy(self) -> Policy:
        """TRL's model as the native engine's policy."""
        return as_native_policy(self)

    @cached_property
    def micro_batch(self) -> FittedSize:
        """The tokens of one pass with which `policy` reads rows."""
        return new_micro_batch()

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of one generation; TRL's `steps_per_generation` counts passes."""
        options = self.stock.args
        return int(options.steps_per_generation // options.gradient_accumulation_steps)

    def on_policy(self, decision: Decision, step: int) -> bool:
        """Always False, so that the monitor reads TRL's old log-probabilities.

        Where TRL has none, the ratio is 1.
        """
        return False

    def loss_scale(self, decision: Decision, step: int) -> float:
        """TRL's loss divided by the mean over the step's tokens or rows; 1 except for `dapo`."""
        return dapo_loss_scale(decision, step) if self.stock.args.loss_type == "dapo" else 1.0


def describe_stock_run(observed: ObservedTrainer) -> dict[str, Any]:
    """The content of imported.json."""
    options = observed.stock.args
    if isinstance(observed.stock, RLOOTrainer):
        note = f"RLOO, beta={options.beta}, normalize_advantages={options.normalize_advantages}"
    else:
        note = f"loss_type={options.loss_type}, scale_rewards={options.scale_rewards}"
    return describe_run(observed, "PoiseCallback", note)
