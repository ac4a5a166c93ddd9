"""What a tracker is: it takes rows, and is closed.

It is made with `(run, out, about)`: the run's folder, another place for its own files or None, and
the run's options as tables. Before anything new it is sent every row that the folder holds, in
their order, whether it has seen them or not: a resumed run, one that was not tracked from its
beginning and one that has ended are the same to it. It must not show a row twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol


class Row(NamedTuple):
    """A line of metrics.jsonl or evaluations.jsonl.

    Example:
        Row(iteration=12, values={"reward/success": 0.5, "update/loss": -0.01}, time=1.8e9)
    """

    iteration: int
    values: Mapping[str, float]  # by panel and name
    time: float  # when, in seconds since 1970


class Tracker(Protocol):
    place: Path  # where its files are

    def log(self, row: Row) -> None: ...

    def close(self, *, failed: bool) -> None:
        """`failed`: the run did not come to its end."""
