"""The training file without its copies: the other lines, as they are and where they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from counterpoise.errors import PoiseError
from counterpoise.files import replacing
from counterpoise.task.contamination.items import Item


def write_clean(train: Sequence[Item], copies: Sequence[Item], path: Path) -> int:
    """Write what is left and return how many lines that is."""
    dropped = {item.line for item in copies}
    kept = [item.raw for item in train if item.line not in dropped]
    try:
        with replacing(path) as temporary:
            temporary.write_text("".join(f"{raw}\n" for raw in kept), encoding="utf-8")
    except OSError as fault:
        raise PoiseError(f"{path} cannot be written: {fault.strerror}") from fault
    return len(kept)
