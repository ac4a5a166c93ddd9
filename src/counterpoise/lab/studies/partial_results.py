"""Partial results of a study, saved until the study is complete.

A part is what a study measures at a time, such as a batch or a seed: its records depend only on
the lab and on the part's name. A stopped study finds its parts in NAME.part.parquet and continues
with the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterpoise.lab.studies.records import path_for, read_records, write_records
from counterpoise.statistics.finding import Record, Records

if TYPE_CHECKING:
    from counterpoise.lab.studies.harness import Lab

SAVE_INTERVAL = 20.0  # seconds between two saves


class PartialResults:
    """Measures each part once and saves it from time to time.

    Example:
        parts = PartialResults(out / "proxy.part.parquet", settings)
        records = [*parts("batch 1", measure_one), *parts("batch 2", measure_two)]
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        # Parts of a measurement at other settings stay in their file.
        self.path, self.settings = path_for(path, settings), settings
        saved_records, self.earlier_seconds = read_records(self.path, settings) or ([], 0.0)
        self.records_by_part: dict[str, list[Record]] = {}
        for record in saved_records:
            part_name = record.pop("part")
            # The table fills missing keys with null; drop them to get the records as measured.
            present_values = {
                column: value for column, value in record.items() if value is not None
            }
            self.records_by_part.setdefault(part_name, []).append(present_values)
        self.start = self.last_save = time.perf_counter()

    def __call__(self, name: str, measure: Callable[[], Records]) -> Records:
        if name not in self.records_by_part:
            self.records_by_part[name] = list(measure())
            if time.perf_counter() - self.last_save > SAVE_INTERVAL:
                self.save()
        return self.records_by_part[name]

    @property
    def is_begun(self) -> bool:
        """Whether an earlier command left parts."""
        return self.path.is_file()

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.records_by_part, self.earlier_seconds = {}, 0.0

    @property
    def seconds(self) -> float:
        """Seconds of measuring, including those of earlier commands."""
        return self.earlier_seconds + time.perf_counter() - self.start

    def save(self) -> None:
        table_rows = [
            {"part": part_name, **record}
            for part_name, records in self.records_by_part.items()
            for record in records
        ]
        if table_rows:
            write_records(self.path, table_rows, self.settings, self.seconds)
        self.last_save = time.perf_counter()


def measure_batches(
    lab: Lab,
    measure_batch: Callable[[Lab, int], Records],
    label_prefix: str = "",
    share: float = 1.0,
) -> list[Record]:
    """The records of all batches, numbered from 1. Progress runs up to `share` of the study."""
    records: list[Record] = []
    batches = lab.sizes["batches"]
    for batch in range(1, batches + 1):
        records += lab.measure_part(f"batch {batch}", partial(measure_batch, lab, batch))
        lab.progress(f"{label_prefix}batch {batch} of {batches}", share * batch / batches)
    return records
