"""Token texts of a run, kept for the runs that were looked at last."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from counterpoise.errors import PoiseError
from counterpoise.report.traces import Vocabulary, read_vocabulary
from counterpoise.serve.answers import NotFoundError
from counterpoise.serve.log_tail import file_signature
from counterpoise.serve.run_reader import RunReader

LARGEST_FILE = 64 << 20  # bytes: a vocabulary of a million tokens


def read_run_vocabulary(reader: RunReader) -> Vocabulary:
    """The run's vocabulary; an empty one, which shows numbers, where it is absent or damaged."""
    try:
        path = reader.file("vocabulary.json")
    except NotFoundError:
        return Vocabulary(())
    signature = file_signature(path)
    if signature is None or signature[0] > LARGEST_FILE:
        return Vocabulary(())
    return _read(path.parent, signature)


@lru_cache(maxsize=4)
def _read(folder: Path, signature: tuple[int, int]) -> Vocabulary:
    try:
        return read_vocabulary(folder)
    except PoiseError:
        return Vocabulary(())
