"""Read and write records: NAME.parquet, a tidy table with the settings of the measurement.

Every measurement first looks for existing records: records of the same settings are reused, and a
stopped measurement continues from them (run.py, token_values.py, credit/tokens.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise.errors import PoiseError
from counterpoise.files import atomic_write
from counterpoise.statistics.finding import SCHEMA, Record
from counterpoise.store.parquet_errors import PARQUET_ERRORS


def write_records(
    path: Path, records: list[Record], settings: dict[str, Any], seconds: float
) -> None:
    """Write the table whole or not at all; a key missing from a record becomes null."""
    if not records:
        raise PoiseError(f"study {path.stem} measured nothing: the batch had no signal")
    # Panels have different keys; the table has all of them, in the order of their first use.
    columns = list(dict.fromkeys(column for record in records for column in record))
    table = pa.table({column: [record.get(column) for record in records] for column in columns})
    metadata = {
        "counterpoise_schema": str(SCHEMA),
        "settings": json.dumps(settings),
        "seconds": f"{seconds:.1f}",
    }
    with atomic_write(path) as temporary:
        pq.write_table(table.replace_schema_metadata(metadata), temporary)


def read_records(
    path: Path, settings: dict[str, Any] | None = None
) -> tuple[list[Record], float] | None:
    """(records, seconds they took); None when there is no table, or one of other settings."""
    if not path.is_file():
        return None
    try:
        table = pq.read_table(path)
        metadata = {
            metadata_key.decode(): metadata_value.decode()
            for metadata_key, metadata_value in (table.schema.metadata or {}).items()
        }
        if settings is not None and not _same_settings(json.loads(metadata["settings"]), settings):
            return None
        return table.to_pylist(), float(metadata["seconds"])
    except PARQUET_ERRORS as fault:
        raise PoiseError(f"{path} is damaged: {fault}; remove it to measure again") from fault


def _same_settings(stored: dict[str, Any], settings: dict[str, Any]) -> bool:
    # Tables of earlier versions do not name the weights.
    if "weights" not in stored:
        settings = {name: setting for name, setting in settings.items() if name != "weights"}
    return stored == settings
