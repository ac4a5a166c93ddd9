"""What a study has measured so far: parts of its records, kept until the study is whole.

A part is a batch, or a candidate: what depends on nothing but the lab and the part's own name. A
study that was stopped finds its parts in NAME.part.parquet and goes on with the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterpoise.lab.studies.records import read_records, write_records
from counterpoise.statistics.finding import Record, Records

if TYPE_CHECKING:
    from counterpoise.lab.studies.harness import Lab

SAVE_INTERVAL = 20.0  # seconds between two savings


class PartialResults:
    """Example:

    parts = PartialResults(out / "proxy.part.parquet", settings)
    records = [*parts("batch 1", measure_one), *parts("batch 2", measure_two)]
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path, self.settings = path, settings
        saved, self.earlier_seconds = read_records(path, settings) or ([], 0.0)
        self.records_by_part: dict[str, list[Record]] = {}
        for record in saved:
            name = record.pop("part")
            there = {key: value for key, value in record.items() if value is not None}
            self.records_by_part.setdefault(name, []).append(there)
        self.start = self.last_save = time.perf_counter()

    def __call__(self, name: str, measure: Callable[[], Records]) -> Records:
        if name not in self.records_by_part:
            self.records_by_part[name] = list(measure())
            if time.perf_counter() - self.last_save > SAVE_INTERVAL:
                self.save()
        return self.records_by_part[name]

    @property
    def seconds(self) -> float:
        """All of them, those of earlier commands too."""
        return self.earlier_seconds + time.perf_counter() - self.start

    def save(self) -> None:
        lines = [
            {"part": name, **r} for name, records in self.records_by_part.items() for r in records
        ]
        if lines:
            write_records(self.path, lines, self.settings, self.seconds)
        self.last_save = time.perf_counter()


def measure_batches(
    lab: Lab, measure_batch: Callable[[Lab, int], Records], doing: str = "", share: float = 1.0
) -> list[Record]:
    """The records of every batch of the lab, numbered from 1: `share` of the study's work."""
    records: list[Record] = []
    batches = lab.sizes["batches"]
    for batch in range(1, batches + 1):
        records += lab.measure_part(f"batch {batch}", partial(measure_batch, lab, batch))
        lab.progress(f"{doing}batch {batch} of {batches}", share * batch / batches)
    return records
