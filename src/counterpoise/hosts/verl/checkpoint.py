"""Add to verl's checkpoints what RB needs to go on: the rollouts that wait, and its counts.

    global_step_N/poise.json         which rollouts wait, with their advantages and ages; counts
    global_step_N/transfer_queue/    their tokens and log-probabilities, as TransferQueue saves them

verl saves TransferQueue in its asynchronous modes, and in mode `sync` only with RB, from here. The
batch that was just trained is in it too, and is removed when a run is resumed. Where the waiting
rollouts cannot be restored, the run goes on without them, says so, and keeps its counts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import transfer_queue as tq
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

from counterpoise.batch.buffer import BufferCounts
from counterpoise.errors import PoiseError, first_line
from counterpoise.files import atomic_write, make_folder
from counterpoise.hosts.verl.options import select
from counterpoise.hosts.verl.row_keys import group_of_key
from counterpoise.types import Row

STATE_FILE = "poise.json"
QUEUE_FOLDER, ACTOR_FOLDER = "transfer_queue", "actor"  # verl's names
TRAINING_PARTITION = "train"  # of TransferQueue
ROW_FIELDS = ("group", "advantage", "num_tokens", "index", "born")


@dataclass(frozen=True, slots=True, eq=False)
class BalanceState:
    """Everything that RB knows between two updates.

    Example:
        BalanceState("sync", counts=BufferCounts(added=64, ...), rounds=2,
                     waiting_rows={"5c1e_0_0": Row(...)}, update_of_group={"5c1e": 1})
    """

    trainer_mode: str
    counts: BufferCounts = field(default_factory=BufferCounts)
    rounds: int = 0  # sampled so far
    prompts_at_start: int = 0  # of the asynchronous mode: running or waiting at the first update
    waiting_rows: Mapping[str, Row] = field(default_factory=dict)  # by key, oldest group first
    update_of_group: Mapping[str, int] = field(default_factory=dict)  # of the waiting groups
    scored_keys: Collection[str] = ()  # of waiting rows whose old log-probabilities are known

    def without_waiting_rows(self) -> BalanceState:
        """The state after the waiting rows are lost: they count as dropped."""
        num_dropped = self.counts.dropped_aged + len(self.waiting_rows)
        return replace(
            self,
            counts=replace(self.counts, dropped_aged=num_dropped),
            waiting_rows={},
            update_of_group={},
            scored_keys=(),
        )


def checkpoint_to_resume(config: Any) -> Path | None:
    """The folder global_step_N that verl resumes from; None where it begins a new run."""
    resume_mode = select(config, "trainer.resume_mode", "auto")
    if resume_mode == "disable":
        return None
    if resume_mode == "auto":
        folder = Path(select(config, "trainer.default_local_dir", ""))
        latest = find_latest_ckpt_path(str(folder.absolute()))
        return Path(latest) if latest else None
    return Path(select(config, "trainer.resume_from_path") or "").absolute()


def save_state(checkpoints: Path, global_step: int, state: BalanceState) -> None:
    """Add the state to the checkpoint of `global_step`, before verl saves its own part."""
    # Absolute, because TransferQueue's processes may work in other folders.
    folder = checkpoints.absolute() / f"global_step_{global_step}"
    make_folder(folder)
    if state.trainer_mode == "sync":
        _remove_outdated_queues(folder)
        if state.waiting_rows:
            tq.save_checkpoint(folder / QUEUE_FOLDER)
    record = {
        "schema": 1,
        "trainer_mode": state.trainer_mode,
        "counts": asdict(state.counts),
        "rounds": state.rounds,
        "prompts_at_start": state.prompts_at_start,
        "waiting_rows": {
            key: {name: getattr(row, name) for name in ROW_FIELDS}
            for key, row in state.waiting_rows.items()
        },
        "update_of_group": dict(state.update_of_group),
        "scored_keys": sorted(state.scored_keys),
    }
    with atomic_write(folder / STATE_FILE) as temporary:
        temporary.write_text(json.dumps(record), encoding="utf-8")


def _remove_outdated_queues(latest: Path) -> None:
    """Remove the rollouts of checkpoints whose weights verl has removed."""
    for folder in latest.parent.glob("global_step_*"):
        if not (folder / ACTOR_FOLDER).exists():
            shutil.rmtree(folder / QUEUE_FOLDER, ignore_errors=True)


def load_state(folder: Path, trainer_mode: str) -> tuple[BalanceState, str]:
    """The state of the checkpoint, and a warning: what of it is lost, or "" if nothing is.

    In mode `sync` the waiting rollouts are put back into TransferQueue; in the asynchronous mode
    verl has done so.
    """
    if not (folder / STATE_FILE).exists():
        return BalanceState(trainer_mode), (
            f"{folder} has no {STATE_FILE}: rollouts that waited are lost, and poise/rollouts_* "
            "count from 0"
        )
    state = _read_state(folder / STATE_FILE)
    fault = ""
    if state.trainer_mode != trainer_mode:
        fault = f"they were sampled in trainer mode {state.trainer_mode}"
    elif trainer_mode == "sync" and state.waiting_rows:
        try:
            tq.load_checkpoint(folder / QUEUE_FOLDER)
        except (OSError, RuntimeError, ValueError) as error:
            fault = first_line(error)
    if not fault and not _keep_waiting_rows(state.waiting_rows):
        fault = f"{folder / QUEUE_FOLDER} does not hold them"
    state = replace(state, trainer_mode=trainer_mode)
    if not fault or not state.waiting_rows:
        return state, ""
    warning = f"{len(state.waiting_rows)} waiting rollouts are lost: {fault}"
    return state.without_waiting_rows(), warning


def _read_state(file: Path) -> BalanceState:
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        return BalanceState(
            trainer_mode=record["trainer_mode"],
            counts=BufferCounts(**record["counts"]),
            rounds=record["rounds"],
            prompts_at_start=record["prompts_at_start"],
            waiting_rows={key: Row(**row) for key, row in record["waiting_rows"].items()},
            update_of_group=record["update_of_group"],
            scored_keys=record["scored_keys"],
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as fault:
        raise PoiseError(
            f"{file} is damaged ({first_line(fault)}): copy it again, or remove it to go on with "
            "an empty buffer"
        ) from fault


def _keep_waiting_rows(waiting_rows: Mapping[str, Row]) -> bool:
    """Remove the rows of trained batches; False if a waiting row is missing.

    Trained rows do not wait, and the queue has no entry for their prompt any more.
    """
    tags = (tq.kv_list(TRAINING_PARTITION) or {}).get(TRAINING_PARTITION, {})
    prompts = {key for key, tag in tags.items() if tag.get("is_prompt", False)}
    trained_keys = [
        key
        for key in tags
        if key not in prompts and key not in waiting_rows and group_of_key(key) not in prompts
    ]
    if trained_keys:
        tq.kv_clear(keys=trained_keys, partition_id=TRAINING_PARTITION)
    return waiting_rows.keys() <= tags.keys()
