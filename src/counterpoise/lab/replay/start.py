"""The weights and the optimizer state that every virtual update starts from.

The updates are virtual: the next one starts from the same numbers again, so the iterations of a
replay do not build on each other. A checkpoint of a run of ours also has the optimizer's moments
and its step count; any other model starts with fresh moments. AdamW's first step then moves every
weight by about the learning rate, whatever the size of its gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from counterpoise.config import ModelConfig, RunConfig
from counterpoise.errors import PoiseError
from counterpoise.lab.evaluate.models import resolve_models
from counterpoise.model.load import load_policy
from counterpoise.model.templates import COMMAND_OPTION
from counterpoise.run.state import RunState, new_state
from counterpoise.store import checkpoint
from counterpoise.store.folder import RunFolder
from counterpoise.update.optimizer import Optimizer

OPTIMIZER_FILE = "optimizer.safetensors"


@dataclass(frozen=True, slots=True)
class ReplayedModel:
    """A model to replay with.

    Example:
        ReplayedModel("out/a/checkpoints/iteration_00010", ModelConfig("embedded"), "5f0c3a...",
                      checkpoint=Path("out/a/checkpoints/iteration_00010"))
    """

    name: str  # as given, or the model inside the given run
    config: ModelConfig  # what is loaded; for a checkpoint, the run's initial model
    digest: str  # identifies the weights
    checkpoint: Path | None = None  # of a run of ours, whose weights replace the initial ones

    @property
    def run_config(self) -> RunConfig | None:
        """The options of the run that a checkpoint belongs to."""
        run = checkpoint.run_of_checkpoint(self.checkpoint) if self.checkpoint else None
        return RunFolder.open(run).read_config() if run else None


def find_model(name: str, device: str) -> ReplayedModel:
    """A model that `model.name` accepts, a run (its trained model) or a checkpoint of one."""
    (source,) = resolve_models([name])
    config = ModelConfig(name=source.base, device=device)
    folder = Path(source.name)
    run = checkpoint.run_of_checkpoint(folder)
    if run is None:
        return ReplayedModel(source.name, config, source.digest)
    # A checkpoint of a LoRA run holds an adapter: the model must have one to put it into.
    config = replace(RunFolder.open(run).read_config().model, device=device)
    return ReplayedModel(source.name, config, source.digest, folder)


@dataclass(frozen=True, slots=True, eq=False)
class StartingPoint:
    """A copy of the trained weights in host memory, and the optimizer's state if there is one."""

    weights: dict[str, Tensor]
    optimizer_state: dict[str, Tensor] | None
    total_steps: int  # of the run, for its learning-rate schedule

    def restore(self, state: RunState, config: RunConfig, iteration: int) -> None:
        """Set `state` to the starting point, ready for the update of `iteration`."""
        with torch.no_grad():
            checkpoint.set_model_weights(state.policy.model, self.weights)
        state.optimizer.inner.state.clear()  # free the moments before new ones are made
        state.optimizer = Optimizer(state.policy.model, config.update, self.total_steps)
        if self.optimizer_state is not None:
            state.optimizer.restore(self.optimizer_state)
        state.iteration = iteration - 1
        state.skipped_in_a_row = 0


def has_optimizer_state(model: ReplayedModel, config: RunConfig) -> bool:
    """Whether the model is a checkpoint with the moments of the optimizer in `config`."""
    run_config = model.run_config
    return run_config is not None and run_config.update.optimizer == config.update.optimizer


def load_start(
    model: ReplayedModel, config: RunConfig, template: str = ""
) -> tuple[RunState, StartingPoint]:
    """Load the model; `config` are the options of the virtual updates, `template` --template."""
    template = template or config.model.template
    policy = load_policy(replace(config.model, template=template), COMMAND_OPTION)
    # Before the checkpoint's weights are loaded: a KL is measured from the run's initial model.
    state = new_state(policy, config)
    optimizer_state, total_steps = None, 0
    if model.checkpoint:
        checkpoint.load_checkpoint_weights(policy.model, policy.name, model.checkpoint)
        run_config = model.run_config
        if run_config and has_optimizer_state(model, config):
            optimizer_state = _read_optimizer(model.checkpoint)
            total_steps = run_config.max_optimizer_steps
    weights = {
        name: weight.to("cpu", copy=True)
        for name, weight in checkpoint.model_weights(policy.model).items()
    }
    return state, StartingPoint(weights, optimizer_state, total_steps)


def _read_optimizer(folder: Path) -> dict[str, Tensor]:
    if damage := checkpoint.find_damage(folder, (OPTIMIZER_FILE,)):
        raise PoiseError(f"{folder} is damaged: {damage}")
    try:
        return load_file(folder / OPTIMIZER_FILE)
    except (OSError, SafetensorError) as fault:
        raise PoiseError(f"{folder / OPTIMIZER_FILE} cannot be read: {fault}") from fault
