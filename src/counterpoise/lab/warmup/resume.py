"""Checkpoints of an unfinished warm-up in DIR.unfinished, for `--resume`; removed at the end.

    DIR.unfinished/iteration_00250/    weights, optimizer, evaluations, options after 250 steps

The folder is next to DIR, not inside it: a model folder is complete or absent. Saving takes at most
a twentieth of the time. The examples of a step depend only on the seed and the step number, and
second turns are sampled again from the initial weights, so a resumed warm-up ends in the same
weights as an uninterrupted one.
"""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from counterpoise.config import RunConfig
from counterpoise.config.load import config_from_tables, to_toml
from counterpoise.errors import PoiseError
from counterpoise.files import check_unlocked, error_number, folder_lock, remove_leftovers
from counterpoise.lab.warmup.supervise import TrainingCheckpoints
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.load import Policy
from counterpoise.store import checkpoint
from counterpoise.store.resume import forbidden_differences
from counterpoise.update.optimizer import Optimizer

MIN_SAVE_INTERVAL_SECONDS = 60.0  # between two checkpoints
SAVE_INTERVAL_FACTOR = 20  # and at least this many times as long as saving the last one took


def unfinished_folder(out: Path) -> Path:
    return out.with_name(f"{out.name}.unfinished")


def check_unfinished(out: Path, log: Callable[[str], None], *, resume: bool) -> None:
    """Raise an error if a warm-up would be lost, or if there is none to resume."""
    path = unfinished_folder(out)
    if path.is_dir():
        check_unlocked(path)
    elif resume:
        raise PoiseError(f"{path} does not exist: there is no warm-up of {out} to resume")
    checkpoints = checkpoint.list_checkpoints(path)
    if checkpoints and not resume:
        raise PoiseError(f"{path} holds a warm-up that was stopped: add --resume, or remove it")
    if resume and not checkpoints:
        log(f"no checkpoint in {path}: starting from the first step")


@contextmanager
def lock_unfinished(out: Path) -> Iterator[Path]:
    """Lock the checkpoint folder for this process; removes it afterwards if it is empty."""
    path = unfinished_folder(out)
    path.mkdir(parents=True, exist_ok=True)
    with folder_lock(path):
        # A warm-up that was killed while saving its model leaves a temporary folder behind.
        remove_leftovers(out.parent, escape(out.name))
        try:
            yield path
        finally:
            with suppress(OSError):
                path.rmdir()


class WarmupCheckpoints(TrainingCheckpoints):
    """Saves the state of training in `path`, and restores it.

    `evaluations` is the caller's list; `restore` adds the stored ones to it.
    """

    def __init__(
        self,
        path: Path,
        policy: Policy,
        micro: FittedSize,
        config: RunConfig,
        evaluations: list[dict[str, Any]],
        notify: Callable[[str], None],
    ) -> None:
        self.path, self.policy, self.micro, self.config = path, policy, micro, config
        self.evaluations, self.notify = evaluations, notify
        self._last_saved_at, self._save_seconds = time.monotonic(), 0.0

    def restore(self, optimizer: Optimizer) -> int:
        """Restore the newest complete checkpoint, if there is one; returns its number of steps."""
        newest = checkpoint.load_newest(self.path, self.notify)
        if newest is None and checkpoint.list_checkpoints(self.path):
            raise PoiseError(
                f"no checkpoint in {self.path} can be used: restore one from a backup, or remove "
                "the folder and start again without --resume"
            )
        if newest is None:
            return 0
        stored_config = config_from_tables(tomllib.loads(newest.options or newest.state["config"]))
        for option, stored_value, new_value in forbidden_differences(stored_config, self.config):
            raise PoiseError(
                f"{self.path} was made with {option}={stored_value!r}, not {new_value!r}: "
                "resume without that change, or choose another --out"
            )
        checkpoint.set_model_weights(self.policy.model, newest.model)
        optimizer.restore(newest.optimizer)
        # The limit may have been lowered after running out of memory: keep the lower one.
        self.micro.size = min(self.micro.size, newest.state["micro_tokens"])
        self.evaluations += newest.state["judged"]
        self.notify(f"resuming after step {newest.iteration}")
        return newest.iteration

    def is_due(self) -> bool:
        return time.monotonic() - self._last_saved_at >= max(
            MIN_SAVE_INTERVAL_SECONDS, SAVE_INTERVAL_FACTOR * self._save_seconds
        )

    def save(self, optimizer: Optimizer, steps_taken: int) -> None:
        start_time = time.monotonic()
        state = checkpoint.Checkpoint(
            iteration=steps_taken,
            model=checkpoint.model_weights(self.policy.model),
            optimizer=optimizer.state(),
            buffer={},
            state={"judged": self.evaluations, "micro_tokens": self.micro.size},
            options=to_toml(self.config),
        )
        try:
            checkpoint.save(self.path, state, self.config.loop.keep_checkpoints)
        except (OSError, SafetensorError) as fault:
            if (number := error_number(fault)) is None:
                raise
            raise PoiseError(
                f"{self.path} could not be written: {os.strerror(number)}. Fix that, then add "
                "--resume: earlier checkpoints are complete"
            ) from fault
        self._last_saved_at = time.monotonic()
        self._save_seconds = self._last_saved_at - start_time
