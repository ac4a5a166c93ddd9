"""What became of rollouts, from plans.jsonl and drops.jsonl: one table row for each event.

born, group_name, index      the rollout
decided_in                   the iteration whose plan trained on it, or that dropped it
plan_row, step               its row and step in that plan; null where it was dropped
dropped                      why it was dropped; null where it was trained on
advantage                    in that plan; 0 where it was dropped because it had none
sequence                     the same for all events that were written together, larger for later
                             ones: a reader asks for those above the last one that it applied
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise.files import atomic_write
from counterpoise.serve.index.manifest import LogPlace
from counterpoise.store.logs import LOG_CHECKS, row_names
from counterpoise.store.plain_values import plain_text
from counterpoise.store.schema import DROPS

FATE_SCHEMA = pa.schema(
    [
        ("born", pa.int32()),
        ("group_name", pa.string()),
        ("index", pa.int32()),
        ("decided_in", pa.int32()),
        ("plan_row", pa.int32()),
        ("step", pa.int32()),
        ("advantage", pa.float64()),
        ("dropped", pa.string()),
        ("sequence", pa.int32()),
    ]
)
DROP_REASONS = tuple(name for name in DROPS if name != "iteration")
REASONS_WITHOUT_ADVANTAGE = {"no_spread", "no_signal"}  # the rollout's advantage is 0
CHUNK_BYTES = 8 << 20  # of a log, read in one go
DIGEST_BYTES = 256
INT32_LIMIT = 2**31  # of the numbers in FATE_SCHEMA

Fate = tuple[int, str, int, int, int | None, int | None, float | None, str | None]


def read_new_lines(path: Path, place: LogPlace) -> tuple[list[bytes], LogPlace, bool]:
    """(new complete lines, the place after them, whether it is another log than before)."""
    try:
        with path.open("rb") as file:
            inode = path.stat().st_ino
            is_another = place.offset > 0 and not _is_same_log(file, inode, place)
            start = 0 if is_another else place.offset
            file.seek(start)
            text = file.read(CHUNK_BYTES)
            # A single line may be longer than the chunk.
            while text and b"\n" not in text and (more := file.read(CHUNK_BYTES)):
                text += more
            end = text.rfind(b"\n") + 1
            offset = start + end
            file.seek(max(0, offset - DIGEST_BYTES))
            digest = _digest(file.read(min(DIGEST_BYTES, offset)))
    except OSError:
        return [], LogPlace(), place.offset > 0
    return text[:end].split(b"\n")[:-1], LogPlace(inode, offset, digest), is_another


def _is_same_log(file: Any, inode: int, place: LogPlace) -> bool:
    file.seek(max(0, place.offset - DIGEST_BYTES))
    tail = file.read(min(DIGEST_BYTES, place.offset))
    return inode == place.inode and _digest(tail) == place.tail_digest


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def plan_fates(line: bytes) -> Iterator[Fate]:
    """The rows of one plan; nothing for a line that is no plan, or one without its rows."""
    plan = _parse(line)
    if plan is None or "steps" not in plan:
        return
    try:
        LOG_CHECKS["plans"](plan)
    except (ValueError, RecursionError):
        return
    step_of_row = {row: step for step, rows in enumerate(plan["steps"]) for row in rows}
    columns = zip(row_names(plan), plan["advantage"], plan["born"], strict=True)
    for row, ((name, index), advantage, born) in enumerate(columns):
        # No rollout of the index has such numbers; a log that was damaged may.
        if max(born, index) >= INT32_LIMIT:
            continue
        step = step_of_row.get(row)
        yield born, name, index, plan["iteration"], row, step, float(advantage), None


def drop_fates(line: bytes) -> Iterator[Fate]:
    """The rollouts that one line of drops.jsonl names."""
    record = _parse(line)
    if record is None:
        return
    for reason in DROP_REASONS:
        groups = record.get(reason)
        if not isinstance(groups, dict):
            continue
        advantage = 0.0 if reason in REASONS_WITHOUT_ADVANTAGE else None
        for group, indices in groups.items():
            name, born = plain_text(group), born_in(group, record["iteration"])
            for index in indices if isinstance(indices, list) else ():
                if isinstance(index, int) and 0 <= index < INT32_LIMIT:
                    yield born, name, index, record["iteration"], None, None, advantage, reason


def born_in(group: str, iteration: int) -> int:
    """The iteration that sampled a group, with which its key begins ("7:word_problems/train/12").

    For a key that does not begin with a number it is `iteration`.
    """
    number = group.partition(":")[0]
    return int(number) if number.isdecimal() and len(number) < 9 else iteration


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    is_record = isinstance(record, dict) and isinstance(record.get("iteration"), int)
    return record if is_record and 0 <= record["iteration"] < INT32_LIMIT else None


def write_fates(path: Path, fates: list[Fate], sequence: int) -> None:
    columns = [*zip(*fates, strict=True), [sequence] * len(fates)]
    arrays = [
        pa.array(list(column), field.type)
        for column, field in zip(columns, FATE_SCHEMA, strict=True)
    ]
    with atomic_write(path, durable=False) as temporary:
        pq.write_table(
            pa.table(arrays, schema=FATE_SCHEMA),
            temporary,
            compression="lz4",
            use_dictionary=["group_name", "dropped"],
        )


def merge_fates(folder: Path, file: str, names: Sequence[str]) -> None:
    table = pa.concat_tables([pq.read_table(folder / name) for name in names])
    with atomic_write(folder / file, durable=False) as temporary:
        pq.write_table(
            table, temporary, compression="lz4", use_dictionary=["group_name", "dropped"]
        )
