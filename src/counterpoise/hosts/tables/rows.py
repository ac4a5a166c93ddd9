"""The rows of a table: JSON lines, JSON, parquet or CSV, one at a time where the format allows it.

log.jsonl, log.jsonl.zst    an object on each line
log.json                    a list of objects, an object with one such list, or JSON lines
log.parquet                 a row group at a time
log.csv                     texts; cells that begin with [ or { are read as JSON, empty ones are
                            missing
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError, first_line
from counterpoise.hosts.importing.json_lines import read_objects
from counterpoise.store.parquet_errors import PARQUET_ERRORS
from counterpoise.task.read_files import read_records, to_json_value

SUFFIXES = (".jsonl", ".json", ".parquet", ".csv", ".jsonl.zst")
PARQUET_BATCH = 256  # rows

TableRow = tuple[str, Mapping[str, Any]]  # where it stands, and its values by column


def is_table_file(file: Path) -> bool:
    return file.is_file() and file.name.lower().endswith(SUFFIXES)


def read_rows(file: Path, on_torn_file: Callable[[Path], None] | None = None) -> Iterator[TableRow]:
    """All rows of the file, each with the words that an error message needs."""
    suffix = file.suffix.lower()
    if suffix == ".parquet":
        return _read_parquet(file)
    if suffix == ".csv":
        return _read_csv(file)
    if suffix == ".json":
        return ((record.where, record.values) for record in read_records(str(file)))
    return read_objects(file, on_torn_file=on_torn_file)


def peek_row(file: Path) -> Mapping[str, Any]:
    """The first row, to recognise columns by; {} where it cannot be read."""
    try:
        return next((values for _, values in islice(read_rows(file, lambda torn: None), 1)), {})
    except PoiseError:
        return {}


def _read_parquet(file: Path) -> Iterator[TableRow]:
    import pyarrow.parquet as pq

    try:
        row_number = 0
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches(PARQUET_BATCH):
                for values in batch.to_pylist():
                    yield f"{file} row {row_number}", to_json_value(values)
                    row_number += 1
    except PARQUET_ERRORS as fault:
        raise PoiseError(f"{file} cannot be read as parquet: {first_line(fault)}") from fault


def _read_csv(file: Path) -> Iterator[TableRow]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # a response may be long
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            for row_number, cells in enumerate(csv.DictReader(lines), 1):
                where = f"{file} row {row_number}"
                if None in cells or None in cells.values():
                    raise PoiseError(f"{where}: another number of cells than in the first line")
                yield where, {name: _parse_cell(cell) for name, cell in cells.items()}
    except (OSError, UnicodeDecodeError, csv.Error) as fault:
        raise PoiseError(f"{file} cannot be read as CSV: {first_line(fault)}") from fault


def _parse_cell(cell: str) -> Any:
    if cell.startswith(("[", "{")):
        try:
            return json.loads(cell)
        except (ValueError, RecursionError):  # a text that begins with a bracket
            return cell
    return cell or None
