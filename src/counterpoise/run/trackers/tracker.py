"""The interface of trackers: they receive rows and are closed.

A tracker is made with `(run_folder, out, run_options)`: the run's folder, the folder for the
tracker's own files (None: the run's folder), and the run's options as tables. It first receives
every row that the folder holds, in order, even those it received in an earlier process: a resumed
run, a run tracked from its middle and a finished run are the same to it. It must not show a row
twice.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from counterpoise.errors import PoiseError, first_line
from counterpoise.files import atomic_write
from counterpoise.variants import TRACKERS

PROJECT = "counterpoise"  # in trackers that have projects


class MetricRow(NamedTuple):
    """The numbers of a line of metrics.jsonl, evaluations.jsonl or benchmarks.jsonl.

    Example:
        MetricRow(iteration=12, values={"reward/success": 0.5, "update/loss": -0.01}, time=1.8e9)
    """

    iteration: int
    values: Mapping[str, float]  # by panel and name
    time: float  # seconds since 1970


class Tracker(Protocol):
    folder: Path  # where its files are

    def log(self, row: MetricRow) -> None: ...

    def close(self, *, failed: bool) -> None:
        """End the tracking; `failed` if the run did not finish."""


def check_installed(names: Sequence[str]) -> None:
    """Raise an error for an unknown tracker or one whose package is not installed.

    Called before anything is loaded or written.
    """
    for tracker_name in names:
        try:
            TRACKERS.load(tracker_name)
        except ImportError as fault:
            raise PoiseError(
                f"{tracker_name} cannot be imported ({first_line(fault)}): "
                f"pip install 'counterpoise[{tracker_name}]'"
            ) from fault


def prepare_tracker_home(run_folder: Path, out: Path | None) -> Path:
    """Create the folder that holds the folders of all trackers of a run.

    A tracker's files are in RUN/NAME, or with `--out DIR` in DIR/RUN/NAME. DIR/RUN/run.json names
    the run folder, so that two runs of the same name are not mixed up.
    """
    if out is None:
        return run_folder
    home = out / run_folder.resolve().name
    home.mkdir(parents=True, exist_ok=True)
    owner_file = home / "run.json"
    owner = {"schema": 1, "run": str(run_folder.resolve())}
    if not owner_file.exists():
        with atomic_write(owner_file) as temporary:
            temporary.write_text(json.dumps(owner), encoding="utf-8")
    if (recorded_owner := json.loads(owner_file.read_text(encoding="utf-8"))) != owner:
        raise PoiseError(
            f"{home} belongs to another run, {recorded_owner['run']}: choose another --out"
        )
    return home


def load_run_id(tracker_folder: Path) -> str:
    """The id stored in `tracker_folder`, created on first use."""
    id_file = tracker_folder / "id.json"
    if not id_file.is_file():
        tracker_folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(id_file) as temporary:
            temporary.write_text(json.dumps({"schema": 1, "id": secrets.token_hex(4)}))
    identifier: str = json.loads(id_file.read_text(encoding="utf-8"))["id"]
    return identifier
