"""Read JSON lines of other trainers; a truncated line or a missing field is named."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError


def read_objects(path: Path, needed: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(location, object) for every line that is not blank."""
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    where = f"{path}, line {number}"
                    yield where, _parse_object(line, where, needed)
    except OSError as fault:
        raise PoiseError(f"{path} cannot be read: {fault.strerror}") from fault


def _parse_object(line: bytes, where: str, needed: Sequence[str]) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as fault:
        raise PoiseError(
            f"{where}: not JSON ({fault}): the line was cut short; copy the file again, or remove "
            "the line"
        ) from fault
    if not isinstance(record, dict):
        raise PoiseError(f"{where}: not a JSON object, so no rollout: remove the line")
    missing = [name for name in needed if name not in record]
    if missing:
        present = ", ".join(sorted(record)) or "none"
        raise PoiseError(
            f"{where}: no '{missing[0]}' (fields: {present}): written by another version or tool"
        )
    return record


def check_step(step: object, where: str) -> int:
    """The step number, if it is a whole number from 0."""
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise PoiseError(f"{where}: the step {step!r} is not a whole number from 0")
    return step
