"""Read and write records: NAME.parquet, a tidy table with the settings of the measurement.

Every measurement first looks for existing records: records of the same settings are reused, and a
stopped measurement continues from them (run.py, token_values.py, credit/tokens.py). A table of
other settings is not replaced: NAME-DIGEST.parquet, with a digest of its settings, holds it.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise.errors import PoiseError, first_line
from counterpoise.files import atomic_write
from counterpoise.statistics.finding import SCHEMA, Record
from counterpoise.store.parquet_errors import PARQUET_ERRORS

Settings = dict[str, Any]
# Tables of earlier versions do not name the weights, nor what stored rollouts held.
ADDED_SETTINGS = ("weights", "rollouts_digest")


class StoredTable(NamedTuple):
    """A table of records with its metadata.

    Example:
        StoredTable("proxy", [{"optimizer": "sgd", ...}, ...], {"model": "embedded", ...}, 41.2)
    """

    study: str  # "" in tables of earlier versions
    records: list[Record]
    settings: Settings
    seconds: float  # that measuring took


def write_records(
    path: Path, records: list[Record], settings: Settings, seconds: float, study: str = ""
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
        **({"study": study} if study else {}),
    }
    with atomic_write(path) as temporary:
        pq.write_table(table.replace_schema_metadata(metadata), temporary)


def read_records(path: Path, settings: Settings | None = None) -> tuple[list[Record], float] | None:
    """(records, seconds they took); None when there is no table, or one of other settings."""
    if not path.is_file() or (settings is not None and not _has_settings(path, settings)):
        return None
    table = read_table(path)
    return table.records, table.seconds


def read_table(path: Path) -> StoredTable:
    """The table of a measurement; a PoiseError if it cannot be read, or is another kind of file."""
    settings = _read_settings(path)
    try:
        metadata = _read_metadata(path)
        records = pq.read_table(path).to_pylist()
        return StoredTable(
            metadata.get("study", ""), records, settings, float(metadata.get("seconds", 0.0))
        )
    except PARQUET_ERRORS as fault:
        raise _damaged(path, fault) from fault


def path_for(path: Path, settings: Settings) -> Path:
    """Where a table of these settings belongs: `path`, or NAME-DIGEST.parquet if that is taken."""
    aside = _path_aside(path, settings)
    if _has_settings(aside, settings):
        return aside
    is_free = not path.is_file() or _has_settings(path, settings)
    return path if is_free else aside


def set_aside(path: Path, settings: Settings) -> None:
    """Rename a table of other settings than these, so that `path` can be written."""
    if path.is_file() and not _has_settings(path, settings):
        path.replace(_path_aside(path, _read_settings(path)))


def restore_records(path: Path, settings: Settings) -> None:
    """Rename a table of these settings that was set aside to `path` again."""
    if has_records(path, settings) and not _has_settings(path, settings):
        set_aside(path, settings)
        _path_aside(path, settings).replace(path)


def has_records(path: Path, settings: Settings) -> bool:
    """Whether there is a table of these settings, in `path` or set aside."""
    return _has_settings(path, settings) or _has_settings(_path_aside(path, settings), settings)


def _path_aside(path: Path, settings: Settings) -> Path:
    digest = sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
    return path.with_name(f"{path.stem}-{digest}{path.suffix}")


def _has_settings(path: Path, settings: Settings) -> bool:
    if not path.is_file():
        return False
    stored = _read_settings(path)
    unknown = [name for name in ADDED_SETTINGS if name not in stored]
    return stored == {name: value for name, value in settings.items() if name not in unknown}


def _read_settings(path: Path) -> Settings:
    try:
        metadata = _read_metadata(path)
        if "settings" in metadata:
            return dict(json.loads(metadata["settings"]))
    except PARQUET_ERRORS as fault:
        raise _damaged(path, fault) from fault
    raise PoiseError(f"{path} is not a table of a study: it does not say how it was measured")


def _read_metadata(path: Path) -> dict[str, str]:
    metadata = pq.read_schema(path).metadata or {}
    return {key.decode(): value.decode() for key, value in metadata.items()}


def _damaged(path: Path, fault: BaseException) -> PoiseError:
    return PoiseError(f"{path} is damaged: {first_line(fault)}; remove it to measure again")
