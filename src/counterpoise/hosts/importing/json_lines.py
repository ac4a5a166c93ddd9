"""Read JSON lines of other trainers; errors say which line is cut off or lacks a field.

Files that end in .zst are decompressed while they are read, frame by frame.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from counterpoise.errors import PoiseError, first_line

LARGEST_STEP = 2**31 - 1
LONGEST_FIRST_LINE = 1 << 28  # in bytes; peek_object reads no more than this


def read_objects(
    path: Path,
    needed: Sequence[str] = (),
    known_format: str = "",
    on_torn_file: Callable[[Path], None] | None = None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(location, object) for every line that is not blank.

    Arguments:
        needed           fields that every object must have
        known_format     the newest format that can be read, for the message about a missing field
        on_torn_file     called with the file if its last line is incomplete, as in a run that is
                         being trained; that line is left out. None: such a line is an error
    """
    for where, line in read_lines(path, on_torn_file):
        yield where, parse_object(line, where, needed, known_format)


def read_lines(
    path: Path, on_torn_file: Callable[[Path], None] | None = None
) -> Iterator[tuple[str, bytes]]:
    """(location, line) for every line that is not blank, with its line end."""
    try:
        with open_lines(path) as lines:
            for number, line in enumerate(lines, 1):
                if on_torn_file is not None and not line.endswith(b"\n") and not _is_json(line):
                    on_torn_file(path)
                elif line.strip():
                    yield f"{path}, line {number}", line
    except pa.ArrowException as fault:
        raise PoiseError(f"{path} is damaged: {first_line(fault)}; copy it again") from fault
    except OSError as fault:
        reason = fault.strerror or first_line(fault)
        raise PoiseError(f"{path} cannot be read: {reason}") from fault


def open_lines(path: Path) -> BinaryIO:
    if path.suffix == ".zst":
        raw_stream = pa.input_stream(str(path), compression="zstd")
        return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, raw_stream)))
    return path.open("rb")


def peek_object(path: Path) -> dict[str, Any]:
    """The first object of a file, to recognise its format by; {} if there is none."""
    try:
        with open_lines(path) as lines:
            line = lines.readline(LONGEST_FIRST_LINE)
        record = json.loads(line)
    except (OSError, ValueError, RecursionError, pa.ArrowException):
        return {}
    return record if isinstance(record, dict) else {}


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def parse_object(
    line: bytes, where: str, needed: Sequence[str] = (), known_format: str = ""
) -> dict[str, Any]:
    """The object of one line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as fault:
        raise PoiseError(
            f"{where}: not JSON ({fault}): the line was cut short; copy the file again, or remove "
            "the line"
        ) from fault
    if not isinstance(record, dict):
        raise PoiseError(f"{where}: not a JSON object, so no rollout: remove the line")
    missing = [name for name in needed if name not in record]
    if missing:
        present = ", ".join(sorted(record)) or "none"
        raise PoiseError(
            f"{where}: no '{missing[0]}' (fields: {present}): written by another version or tool"
            + (f"; the format of {known_format} can be read" if known_format else "")
        )
    return record


def is_step(step: object) -> bool:
    """Whether it is an integer from 0 to LARGEST_STEP."""
    return isinstance(step, int) and not isinstance(step, bool) and 0 <= step <= LARGEST_STEP


def check_step(step: object, where: str) -> int:
    """The step number; an error if it is not one."""
    if not is_step(step):
        raise PoiseError(
            f"{where}: the step {str(step)[:40]!r} is not a whole number from 0 to {LARGEST_STEP}"
        )
    return cast("int", step)
