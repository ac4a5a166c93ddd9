"""Why a run does not say which tokens pushed a token, and the command that computes it.

A run stores pushes for `monitor.watch` groups of each update: all pairs of tokens would be larger
than all its other files together. `poise replay` takes the update again, on a copy of weights, and
stores them for every group.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from counterpoise.store.folder import CHECKPOINT_PREFIX, CHECKPOINTS, checkpoint_iterations

UNKNOWN_MODEL = "MODEL"


@dataclass(frozen=True, slots=True)
class ReplayCommand:
    """How to compute the pushes of one update.

    Example:
        ReplayCommand("poise replay out/demo --model ... --iterations 12 ...", 11, 12)
    """

    text: str
    # Iteration of the checkpoint that it starts from. 0: the model that the run began with; None:
    # that one is not known either, and the reader names a model.
    weights_of: int | None
    iteration: int

    @property
    def explanation(self) -> str:
        """What the command does, and how near that is to what happened in the run."""
        if self.weights_of == 0:
            precision = "with the model that the run began with"
            precision += "" if self.iteration == 1 else ", so not exactly"
        elif self.weights_of == self.iteration - 1:
            precision = "from the checkpoint before it"
        elif self.weights_of is not None:
            precision = f"with the weights after iteration {self.weights_of}, so not exactly"
        else:
            precision = "with the model that you name, so not exactly"
        return f"To take the same update again, {precision}, and store the pushes on every prompt:"

    @property
    def sentence(self) -> str:
        return f"{self.explanation} {self.text}"


def replay_command(
    run_folder: Path, iteration: int, num_groups: int, *, shown_as: str, model: str = ""
) -> ReplayCommand:
    """The command for one update of a run.

    `shown_as` is how the run's folder is named to the reader; `model` is the model that the run
    began with, which serves where no checkpoint is left.
    """
    earlier = [number for number in checkpoint_iterations(run_folder) if number < iteration]
    weights_of = max(earlier, default=None)
    if weights_of is not None:
        weights = shlex.quote(f"{shown_as}/{CHECKPOINTS}/{CHECKPOINT_PREFIX}{weights_of:05d}")
    elif model:
        weights_of, weights = 0, shlex.quote(model)
    else:
        weights = UNKNOWN_MODEL
    command = (
        f"poise replay {shlex.quote(shown_as)} --model {weights} --iterations {iteration} "
        f"--set monitor.watch={num_groups} --set monitor.tokens=0"
    )
    return ReplayCommand(command, weights_of, iteration)
