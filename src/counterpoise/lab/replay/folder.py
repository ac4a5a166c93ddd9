"""The folder of a replay: a run folder, and replay.json with what was asked for.

The same request goes on after the last finished iteration; another one is refused. The folder has a
config.toml like any run's, but `poise train --resume` refuses it: there is nothing to train.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.files import atomic_write, cannot_write, make_folder, remove_path
from counterpoise.lab.replay.start import ReplayedModel
from counterpoise.store.checksums import CHECKSUMS_FILE
from counterpoise.store.folder import CONFIG, REPLAY, SCHEMA, RunFolder
from counterpoise.store.replays import read_replay

IMPORTED_FOLDER = "imported"  # inside the replay: another trainer's rollouts after their import
# What the fields of a request are called on the command line, where their names differ.
ARGUMENT_NAMES = {
    "rollouts": "ROLLOUTS", "source": "--from", "overrides": "--set",
    "digest": "the digest of the model's weights",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """The arguments of `poise replay`.

    Example:
        ReplayRequest(Path("out/theirs"), "Qwen/Qwen3-0.6B", iterations="10:20", compare=True)
    """

    rollouts: Path
    model: str
    iterations: str = ""  # "A:B"; "": all that are stored
    composer: str = ""  # "": the trainer's own cut where it is stored, else grouped
    steps: int = 0  # 0: as many as the run had, else 4
    template: str = ""  # for prompts without tokens; "": their text as it is
    source: str | None = None  # the trainer, as for `poise import --from`
    reward: str = ""  # as for `poise import --reward`
    compare: bool = False  # also take the updates of the alternative plans
    device: str = "auto"
    overrides: tuple[str, ...] = field(default=())  # section.option=value

    def to_record(self, digest: str) -> dict[str, Any]:
        """What must be equal for a replay to go on; where it runs may differ."""
        record = asdict(self) | {
            "rollouts": str(self.rollouts.resolve()),
            "overrides": list(self.overrides),
            "digest": digest,
        }
        del record["device"]
        return record


def make_replay_folder(out: Path) -> None:
    """Make the folder unless it is there: its lock must be held before anything in it is read."""
    if out.is_dir():
        return
    RunFolder.check_free(out)
    try:
        make_folder(out)
    except OSError as fault:
        raise cannot_write(out, fault) from fault


def open_replay(out: Path, request: ReplayRequest, model: ReplayedModel) -> RunFolder:
    """Write replay.json, or check that the replay in the folder is of the same request.

    The caller holds the folder's lock: what a replay without a finished iteration left is removed.
    """
    record = request.to_record(model.digest)
    if (out / CONFIG).is_file() and (out / REPLAY).is_file():
        # Earlier versions lack the fields that were added since; their replays had the defaults.
        defaults = ReplayRequest(Path(), "").to_record("")
        stored_record = defaults | read_replay(out).get("request", {})
        for name, value in record.items():
            if stored_record[name] != value:
                raise PoiseError(
                    f"{out} was begun with another {ARGUMENT_NAMES.get(name, f'--{name}')}: "
                    f"{_describe(stored_record[name])} then, {_describe(value)} now; repeat "
                    "the first command, or choose another --out"
                )
        return RunFolder(out)
    if (out / REPLAY).is_file():  # stopped before its first iteration: nothing is lost
        for name in (IMPORTED_FOLDER, CHECKSUMS_FILE, REPLAY):
            remove_path(out / name)
    RunFolder.check_free(out)
    content = {
        "schema": SCHEMA,
        "request": record,
        "checkpoint": str(model.checkpoint.resolve()) if model.checkpoint else None,
    }
    try:
        with atomic_write(out / REPLAY) as temporary:
            temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
    except OSError as fault:
        raise cannot_write(out, fault) from fault
    return RunFolder(out)


def _describe(value: Any) -> str:
    """An argument as it was typed; all defaults of a request are empty."""
    if not value:
        return "none"
    return " ".join(value) if isinstance(value, list) else "given" if value is True else str(value)


def store_iterations(folder: RunFolder, numbers: Sequence[int]) -> None:
    """Add the iterations that are replayed to replay.json: `poise check` expects just these."""
    content = read_replay(folder.path)
    if content.get("iterations") != list(numbers):
        content["iterations"] = list(numbers)
        with folder.atomic_write(REPLAY) as temporary:
            temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
