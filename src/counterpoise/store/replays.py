"""replay.json says whose rollouts a replay took, and which of their iterations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError, first_line
from counterpoise.store.folder import REPLAY


@dataclass(frozen=True, slots=True)
class ReplayDescription:
    """What a replay was made from.

    Example:
        ReplayDescription("trl_output", (10, 15, 20, 25), checkpoint="iteration_00020")
    """

    source: str  # name of the folder with the rollouts: a page may be shared, a path is private
    iterations: tuple[int, ...] | None  # all that are replayed; None: written before release 0.3.0
    checkpoint: str = ""  # name of the replayed checkpoint's folder; "": the model itself

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> ReplayDescription:
        """The description in the content of replay.json; unknown where a value has another type."""
        request, iterations = record.get("request"), record.get("iterations")
        rollouts = request.get("rollouts") if isinstance(request, Mapping) else None
        is_known = isinstance(iterations, list) and all(type(n) is int for n in iterations)
        return cls(
            source=_folder_name(rollouts),
            iterations=tuple(iterations) if is_known and iterations else None,
            checkpoint=_folder_name(record.get("checkpoint")),
        )


def _folder_name(path: object) -> str:
    return Path(path).name if isinstance(path, str) else ""


def read_replay(run: Path) -> dict[str, Any]:
    """The content of replay.json."""
    try:
        content = json.loads((run / REPLAY).read_text(encoding="utf-8"))
        return dict(content)
    except (OSError, ValueError, TypeError, RecursionError) as fault:
        raise PoiseError(
            f"{run / REPLAY} is damaged ({first_line(fault)}): choose another --out"
        ) from fault


def describe_replay(run: Path) -> ReplayDescription | None:
    """What the replay in the folder was made from; None for a folder that holds no replay.

    Of a damaged replay.json nothing is known but that it is one.
    """
    if not (run / REPLAY).is_file():
        return None
    try:
        return ReplayDescription.from_record(read_replay(run))
    except PoiseError:
        return ReplayDescription.from_record({})
