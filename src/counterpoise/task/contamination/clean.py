"""Write the training file without copies, as JSON lines; other lines stay unchanged, in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from counterpoise.errors import PoiseError
from counterpoise.files import atomic_write, cannot_write
from counterpoise.task.contamination.items import Item


def write_clean(train: Sequence[Item], copies: Sequence[Item], path: Path) -> int:
    """Write the remaining lines, and return how many there are."""
    if path.suffix == ".parquet":
        raise PoiseError(f"{path}: the output is JSON lines: choose a name that ends in .jsonl")
    # Compared by identity: line numbers repeat when there are several files.
    dropped = {id(item) for item in copies}
    lines = [item.raw for item in train if id(item) not in dropped]
    try:
        with atomic_write(path) as temporary:
            temporary.write_text("".join(f"{raw}\n" for raw in lines), encoding="utf-8")
    except OSError as fault:
        raise cannot_write(path, fault) from fault
    return len(lines)
