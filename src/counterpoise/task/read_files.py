"""Read the records of data files: JSON lines, JSON, parquet, or a folder of such files.

    mine.jsonl      one JSON object per line
    mine.json       a list of objects, an object with one list of objects, or JSON lines
    mine.parquet    one record per row
    folder          its files of these kinds, in the order of their names

A record knows where it stands, for error messages: `mine.jsonl:4` is a line, counted from 1, and
`mine.parquet row 3` is a row, counted from 0 as in pandas. The id of a record without an id column
is its row number, counted from 0; in a folder of several files the file's name comes before it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError, first_line
from counterpoise.task.chat import is_conversation

SUFFIXES = (".jsonl", ".json", ".parquet")
PARQUET_MAGIC = b"PAR1"
# The word that a file's name begins with, and the split it stands for. A folder with files of two
# splits is a whole dataset, not one training set.
SPLIT_WORDS = {
    "train": "train", "test": "test", "val": "validation", "valid": "validation",
    "validation": "validation", "dev": "validation", "heldout": "test", "eval": "test",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a data file.

    Example:
        Record("mine.jsonl:4", "3", {"question": "1 + 1 = ?", "answer": 2}, line=4)
    """

    where: str  # for error messages
    row_name: str  # the id if no column has one
    values: Mapping[str, Any]  # JSON values; those of parquet files are converted
    line: int = 0  # from 1, in a file of JSON lines; 0 for the rows of other files
    raw: str = ""  # the unchanged line without its line end; JSON lines only


class WrittenNumber(float):
    """A number that keeps its spelling in a JSON file: 0.10 equals 0.1 but prints as 0.10."""

    __slots__ = ("spelling",)
    spelling: str

    def __new__(cls, spelling: str) -> WrittenNumber:
        number = super().__new__(cls, spelling)
        number.spelling = spelling
        return number

    def __str__(self) -> str:
        return self.spelling


def write_json(value: Any) -> str:
    """JSON on one line, with numbers as they were written; json.dumps would write 0.10 as 0.1."""
    if isinstance(value, WrittenNumber):
        return value.spelling
    if isinstance(value, Mapping):
        pairs = (
            f"{json.dumps(name, ensure_ascii=False)}: {write_json(value[name])}" for name in value
        )
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(write_json, value))}]"
    return json.dumps(value, ensure_ascii=False, default=str)


def look_up(values: Mapping[str, Any], name: str) -> Any:
    """The value of a column, or of an object's field if the name has dots; None if it is missing
    or nan.

    Example:
        >>> look_up({"reward_model": {"ground_truth": "12"}}, "reward_model.ground_truth")
        '12'
    """
    if name in values:
        value = values[name]
        return None if isinstance(value, float) and math.isnan(value) else value
    column, dot, field_name = name.partition(".")
    inner = values.get(column) if dot else None
    return look_up(inner, field_name) if isinstance(inner, Mapping) else None


def read_records(path: str) -> list[Record]:
    """All records of a file or folder, in order; an error names the file and the line or row."""
    files = _list_files(path)
    records: list[Record] = []
    for file in files:
        id_prefix = f"{file.stem}/" if len(files) > 1 else ""
        records += _read_file(file, str(file) if len(files) > 1 else path, id_prefix)
    if not records:
        raise PoiseError(f"{path}: no records in it")
    return records


def _list_files(path: str) -> list[Path]:
    """The file itself, or the data files of the folder."""
    folder = Path(path)
    try:
        if not folder.is_dir():
            return [folder]
        files = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES)
    except OSError as error:
        raise PoiseError(f"{path}: cannot be read: {error.strerror}") from None
    if not files:
        raise PoiseError(
            f"{path}: a folder without .jsonl, .json or .parquet files; name one, or set "
            "task.name=hub for a dataset of the package `datasets`"
        )
    first_words = [_first_word(file) for file in files]
    splits = {SPLIT_WORDS[word] for word in first_words if word in SPLIT_WORDS}
    if len(splits) > 1:
        file_names = ", ".join(file.name for file in files[:4])
        raise PoiseError(
            f"{path}: a folder with several splits ({file_names}); name one file, as task.path, "
            "and the held-out one as task.heldout_path"
        )
    return files


def _first_word(file: Path) -> str:
    """The letters before the first non-letter: "train" for train-00000-of-00002.parquet."""
    return "".join(
        character if character.isalpha() else " " for character in file.stem.lower()
    ).partition(" ")[0]


def _read_file(file: Path, displayed_path: str, id_prefix: str) -> Iterator[Record]:
    try:
        with file.open("rb") as opened_file:
            is_parquet = opened_file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC
    except FileNotFoundError:
        raise PoiseError(
            f"{displayed_path}: no such file{describe_folder(displayed_path)}; "
            "name a .jsonl, .json or .parquet file"
        ) from None
    except OSError as error:
        raise PoiseError(f"{displayed_path}: cannot be read: {error.strerror}") from None
    if is_parquet or file.suffix == ".parquet":
        return _numbered_records(_read_parquet(file, displayed_path), displayed_path, id_prefix)
    if file.suffix == ".json" and (values := _read_json(file, displayed_path)) is not None:
        return _numbered_records(values, displayed_path, id_prefix)
    return _read_json_lines(file, displayed_path, id_prefix)


def describe_folder(path: str) -> str:
    """Where a relative path was looked up, as a part of a sentence; "" for an absolute path.

    Example:
        "problems.jsonl" -> " in /home/ana (paths of data are relative to the current folder)"
    """
    if Path(path).is_absolute():
        return ""
    return f" in {Path.cwd()} (paths of data are relative to the current folder)"


def _numbered_records(rows: Sequence[Any], displayed_path: str, id_prefix: str) -> Iterator[Record]:
    for row_number, row in enumerate(rows):
        where = f"{displayed_path} row {row_number}"
        if not isinstance(row, dict):
            raise PoiseError(f'{where}: not an object; a record looks like {{"problem": "..."}}')
        yield Record(where, f"{id_prefix}{row_number}", row)


# -- parquet --------------------------------------------------------------------------------------


def _read_parquet(file: Path, displayed_path: str) -> list[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.ParquetFile(file).read().to_pylist()
    except (pa.ArrowException, OSError, ValueError) as fault:
        raise PoiseError(
            f"{displayed_path}: not a parquet file that can be read ({first_line(fault)}); write "
            "or copy it again"
        ) from None
    return [to_json_value(row) for row in rows]


def to_json_value(value: Any) -> Any:
    """Convert a value of a table to JSON types; other types are left as they are.

    Dates become ISO text, decimals become text, and nan becomes None. Bytes are decoded as UTF-8;
    those that are not UTF-8, such as an image's, are lost: they become None.
    """
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {str(name): to_json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return value


# -- JSON -----------------------------------------------------------------------------------------


def _read_json(file: Path, displayed_path: str) -> list[Any] | None:
    """The records of a JSON file; None if it holds JSON lines instead."""
    file_text = "".join(line_text for _, line_text in _lines(file, displayed_path))
    try:
        content = _parse(file_text)
    except (ValueError, RecursionError) as error:
        opening_line = file_text.lstrip().partition("\n")[0]
        # Many tools write JSON lines to a file whose name ends in .json.
        if opening_line.startswith("{") and opening_line.rstrip().endswith("}"):
            return None
        raise PoiseError(f"{displayed_path}: not JSON ({error})") from None
    if isinstance(content, list):
        return content
    named_values = content if isinstance(content, dict) else {}
    lists = [value for value in named_values.values() if isinstance(value, list)]
    has_one_list_of_objects = len(lists) == 1 and all(isinstance(row, dict) for row in lists[0])
    if has_one_list_of_objects and not is_conversation(lists[0]):
        return lists[0]
    if "\n" not in file_text.strip():
        return None  # JSON lines with one record
    if has_one_list_of_objects:
        return [content]  # a record whose list is a conversation
    raise PoiseError(
        f"{displayed_path}: neither a list of records nor an object with one list of them; JSON "
        "lines, one object per line, are read too"
    )


def _read_json_lines(file: Path, displayed_path: str, id_prefix: str) -> Iterator[Record]:
    lines_with_text = (line for line in _lines(file, displayed_path) if line[1].strip())
    for row_number, (line_number, line_text) in enumerate(lines_with_text):
        where = f"{displayed_path}:{line_number}"
        try:
            values = _parse(line_text)
        except (ValueError, RecursionError) as error:
            if file.suffix == ".csv":
                raise PoiseError(
                    f"{displayed_path}: .csv is not read here: write .jsonl, .json or .parquet, "
                    "or train on a folder of .csv files with task.name=hub"
                ) from None
            raise PoiseError(f"{where}: not JSON ({error})") from None
        if not isinstance(values, dict):
            raise PoiseError(f'{where}: not an object; a line looks like {{"id": "1", ...}}')
        raw_line = line_text.removesuffix("\n")
        yield Record(where, f"{id_prefix}{row_number}", values, line_number, raw_line)


def _parse(text: str) -> Any:
    return json.loads(text, parse_float=WrittenNumber, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON number")


def _lines(file: Path, displayed_path: str) -> Iterator[tuple[int, str]]:
    """Line numbers from 1, and the lines with their ends; a byte order mark is dropped."""
    line_number = 0
    try:
        with file.open("rb") as opened_file:
            for line_number, raw_line in enumerate(opened_file, 1):
                yield line_number, raw_line.decode("utf-8-sig" if line_number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise PoiseError(
            f"{displayed_path}:{line_number}: not UTF-8 ({error.reason}); convert the file"
        ) from None
    except OSError as error:
        raise PoiseError(f"{displayed_path}: cannot be read: {error.strerror}") from None
