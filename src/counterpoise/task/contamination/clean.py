"""Write the training file without copies; the other lines stay unchanged and in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from counterpoise.files import atomic_write, cannot_write
from counterpoise.task.contamination.items import Item


def write_clean(train: Sequence[Item], copies: Sequence[Item], path: Path) -> int:
    """Write the remaining lines, and return how many there are."""
    dropped = {item.line for item in copies}
    lines = [item.raw for item in train if item.line not in dropped]
    try:
        with atomic_write(path) as temporary:
            temporary.write_text("".join(f"{raw}\n" for raw in lines), encoding="utf-8")
    except OSError as fault:
        raise cannot_write(path, fault) from fault
    return len(lines)
