"""Records on disk: NAME.parquet, a tidy table with the settings it was measured at.

Whoever measures asks first whether that was done: records of the same settings are taken from the
table, and what was stopped goes on from there (run.py, token_values.py, tokens.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise.errors import PoiseError
from counterpoise.files import replacing
from counterpoise.statistics.finding import SCHEMA, Record


def write_records(
    path: Path, records: list[Record], settings: dict[str, Any], seconds: float
) -> None:
    if not records:
        raise PoiseError(f"study {path.stem} measured nothing: the batch had no signal")
    names = list(dict.fromkeys(name for record in records for name in record))
    table = pa.table({name: [record.get(name) for record in records] for name in names})
    meta = {
        "counterpoise_schema": str(SCHEMA),
        "settings": json.dumps(settings),
        "seconds": f"{seconds:.1f}",
    }
    with replacing(path) as temporary:
        pq.write_table(table.replace_schema_metadata(meta), temporary)


def read_records(
    path: Path, settings: dict[str, Any] | None = None
) -> tuple[list[Record], float] | None:
    """(records, seconds they took); None when absent or, given settings, measured at others."""
    if not path.is_file():
        return None
    try:
        table = pq.read_table(path)
        meta = {
            key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()
        }
        if settings is not None and json.loads(meta["settings"]) != settings:
            return None
        return table.to_pylist(), float(meta["seconds"])
    except (pa.ArrowException, KeyError, ValueError) as fault:
        raise PoiseError(f"{path} is damaged: {fault}; remove it to measure again") from fault
