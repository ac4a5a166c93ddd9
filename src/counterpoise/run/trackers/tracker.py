"""What a tracker is: it takes rows, and is closed.

It is made with `(run, out, about)`: the run's folder, another place for its own files or None, and
the run's options as tables. Before anything new it is sent every row that the folder holds, in
their order, whether it has seen them or not: a resumed run, one that was not tracked from its
beginning and one that has ended are the same to it. It must not show a row twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from counterpoise.errors import PoiseError, first_line
from counterpoise.files import atomic_write
from counterpoise.variants import TRACKERS


class MetricRow(NamedTuple):
    """A line of metrics.jsonl or evaluations.jsonl.

    Example:
        MetricRow(iteration=12, values={"reward/success": 0.5, "update/loss": -0.01}, time=1.8e9)
    """

    iteration: int
    values: Mapping[str, float]  # by panel and name
    time: float  # when, in seconds since 1970


class Tracker(Protocol):
    folder: Path  # where its files are

    def log(self, row: MetricRow) -> None: ...

    def close(self, *, failed: bool) -> None:
        """`failed`: the run did not come to its end."""


# Whether trackers are here, before anything is loaded or written.


def check_installed(names: Sequence[str]) -> None:
    """One line for a name that nobody knows, or a package that is not installed."""
    for name in names:
        try:
            TRACKERS.load(name)
        except ImportError as fault:
            raise PoiseError(
                f"{name} cannot be imported ({first_line(fault)}): "
                f"pip install 'counterpoise[{name}]'"
            ) from fault


# Where a tracker's files lie: in RUN/NAME, or with `--out DIR` in DIR/RUN/NAME.
#
# DIR/RUN/run.json says whose they are, so that two runs of one name do not become one.


def prepare_tracker_home(run: Path, out: Path | None) -> Path:
    """The folder that gets a folder of each tracker's."""
    if out is None:
        return run
    home = out / run.resolve().name
    home.mkdir(parents=True, exist_ok=True)
    owner_file, owner = home / "run.json", {"schema": 1, "run": str(run.resolve())}
    if not owner_file.exists():
        with atomic_write(owner_file) as temporary:
            temporary.write_text(json.dumps(owner), encoding="utf-8")
    if (recorded_owner := json.loads(owner_file.read_text(encoding="utf-8"))) != owner:
        raise PoiseError(f"{home} is of another run, {recorded_owner['run']}: choose another --out")
    return home
