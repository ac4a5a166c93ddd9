"""Follow a log of JSON lines that another process appends to, reading only what is new.

A poll is one `stat`. Where the file has grown, the new complete lines are read; where it is another
file or a shorter one, as after `poise train --resume`, it is read again from the start. The
first line that is no record is named in `problem`, and the others are still used.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from counterpoise.store.logs import INT64_LIMIT

Record = dict[str, Any]
CHUNK_BYTES = 4 << 20
# A line longer than this is not a line of a log: no writer of ours makes one, and a reader that
# waits for its end would hold all of it in memory.
LONGEST_LINE = 256 << 20


class LineSpan(NamedTuple):
    """Where a record stands in its file."""

    offset: int
    size: int


class LogTail:
    """The lines of one log that were read so far, by iteration.

    Example:
        tail = LogTail(run / "plans.jsonl", is_allowed=reader.may_read)
        tail.poll()                         # True where the file has changed since the last call
        tail.read_record(12)["steps"]       # parsed when it is asked for
    """

    def __init__(
        self,
        path: Path,
        is_allowed: Callable[[Path], bool],
        on_record: Callable[[Record], None] | None = None,
        on_restart: Callable[[], None] | None = None,
    ) -> None:
        """`on_record` gets every record once; without it only the places of lines are kept.

        `is_allowed` says whether a path may be read: a log may be a link to somewhere else.
        """
        self.path = path
        self.is_allowed = is_allowed
        self.on_record = on_record
        self.on_restart = on_restart
        self.spans: dict[int, LineSpan] = {}  # iteration -> its last line
        self.modified = 0.0
        self._damage: str | None = None  # the first line that is no record
        self._read_failure: str | None = None  # why the file could not be read at the last poll
        # Requests poll at the same time: each must wait until the new lines are entered.
        self._lock = threading.Lock()
        self._identity: tuple[int, int] | None = None  # device and inode
        self._size = 0
        self._next_offset = 0
        self._line_number = 0

    @property
    def problem(self) -> str | None:
        """What is wrong with the log; None if nothing is known."""
        return self._read_failure or self._damage

    def poll(self) -> bool:
        """Read what was appended; returns whether anything changed."""
        with self._lock:
            problem = self.problem
            is_changed = self._follow_file() and self._read_failure is None
            return is_changed or self.problem != problem

    def _follow_file(self) -> bool:
        self._read_failure = None
        try:
            status = self.path.stat()
        except FileNotFoundError:
            was_there = self._identity is not None
            self._restart(None)
            return was_there
        except OSError as fault:
            self._read_failure = f"{self.path.name} cannot be read: {fault.strerror}"
            self._size = 0  # the next poll finds another size, and so reads the file
            return False
        identity = (status.st_dev, status.st_ino)
        least_size = max(self._size, self._next_offset)
        is_same = identity == self._identity and status.st_size >= least_size
        if is_same and status.st_size == self._size and status.st_mtime == self.modified:
            return False
        # Equal size and another time: rewritten in place, perhaps with other lines.
        if not is_same or status.st_size == self._size:
            self._restart(identity)
        self._size, self.modified = status.st_size, status.st_mtime
        if self.is_allowed(self.path):
            self._read_new_lines()
        else:
            self._damage = f"{self.path.name} is a link that leads out of the served folders"
        return True

    def read_record(self, iteration: int) -> Record | None:
        """The record of an iteration, read from the file; None if there is none."""
        span = self.spans.get(iteration)
        if span is None:
            return None
        try:
            with self.path.open("rb") as file:
                file.seek(span.offset)
                record = json.loads(file.read(span.size))
        # The file may have been replaced since: the next poll reads it again.
        except (OSError, ValueError, RecursionError):
            return None
        is_record = isinstance(record, dict) and record.get("iteration") == iteration
        return record if is_record else None

    def read_line(self, iteration: int) -> bytes:
        """The raw line of an iteration; empty if there is none."""
        span = self.spans.get(iteration)
        if span is None:
            return b""
        try:
            with self.path.open("rb") as file:
                file.seek(span.offset)
                return file.read(span.size)
        except OSError:
            return b""

    def _restart(self, identity: tuple[int, int] | None) -> None:
        self._identity = identity
        self._size = self._next_offset = self._line_number = 0
        self.spans.clear()
        self._damage = None
        if self.on_restart:
            self.on_restart()

    def _read_new_lines(self) -> None:
        try:
            with self.path.open("rb") as file:
                file.seek(self._next_offset)
                pending = b""
                while chunk := file.read(CHUNK_BYTES):
                    pending += chunk
                    *lines, pending = pending.split(b"\n")
                    for line in lines:
                        self._take_line(line)
                    if len(pending) > LONGEST_LINE:
                        self._damage = f"{self.path.name}: line {self._line_number + 1} is too long"
                        return
        except OSError as fault:
            self._read_failure = f"{self.path.name} cannot be read: {fault.strerror or fault}"
            self._size = 0

    def _take_line(self, line: bytes) -> None:
        span = LineSpan(self._next_offset, len(line))
        self._next_offset += len(line) + 1
        self._line_number += 1
        if not line.strip():
            return
        try:
            iteration, record = self._parse(line)
        except (ValueError, RecursionError) as fault:
            reason = str(fault).splitlines()[0] if str(fault) else type(fault).__name__
            self._damage = self._damage or (
                f"{self.path.name} is damaged: line {self._line_number}: {reason[:200]}"
            )
            return
        self.spans[iteration] = span
        if self.on_record and record is not None:
            self.on_record(record)

    def _parse(self, line: bytes) -> tuple[int, Record | None]:
        """(iteration, record); the record is None where only the iteration was needed."""
        if self.on_record is None and (iteration := leading_iteration(line)) is not None:
            return iteration, None
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError("not a JSON object")
        iteration = record.get("iteration")
        if not isinstance(iteration, int) or isinstance(iteration, bool):
            raise ValueError("iteration is not a whole number")
        if not 0 <= iteration < INT64_LIMIT:
            raise ValueError("iteration is below 0 or too large")
        return iteration, record


def leading_iteration(line: bytes) -> int | None:
    """The iteration of a line that begins as our logs do; a whole plan need not be parsed for it.

    Example:
        >>> leading_iteration(b'{"schema": 1, "iteration": 12, "rule": "whole"}')
        12
    """
    prefix = b'{"schema": 1, "iteration": '
    if not line.startswith(prefix) or not line.endswith(b"}"):
        return None
    digits = line[len(prefix) : len(prefix) + 20].partition(b",")[0]
    return int(digits) if digits.isdigit() else None


def file_signature(path: Path) -> tuple[int, int] | None:
    """(size, modification time in ns) of a file; None where there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 (called for every file at every poll)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
