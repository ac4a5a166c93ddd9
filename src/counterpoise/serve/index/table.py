"""The rollouts of one run as a table in memory, for filters, sorting and paging.

The table has the numbers of every indexed rollout, about 100 bytes each; texts stay in the
segments. It follows the manifest: iterations whose files changed are taken out and read again, new
ones are added, and what plans and drops say of older rollouts is entered when it arrives. A reader
sees the table before or after such a step, never between (DuckDB's transactions).
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import duckdb

from counterpoise.serve.index.manifest import Manifest, Signature, read_manifest
from counterpoise.serve.log_tail import file_signature

MEMORY_LIMIT = "400MB"
THREADS = 2
# A row's number in the whole run: iterations are below 2^31, rows of an iteration below 2^32.
KEY = "iteration::BIGINT * 4294967296 + row"
CREATE = """
CREATE TABLE rollouts (
    key BIGINT, iteration INTEGER, "row" INTEGER, group_name VARCHAR, "index" INTEGER,
    prompt_id VARCHAR, reward DOUBLE, length INTEGER, finished BOOLEAN, no_spread BOOLEAN,
    "offset" BIGINT, size INTEGER,
    used INTEGER, plan_row INTEGER, step INTEGER, advantage DOUBLE, dropped VARCHAR
)
"""
# A rollout can have several events: a plan of a run that was resumed, say. The last one holds.
NEWEST_FATES = """
SELECT born, group_name, "index", arg_max(struct_pack(
    used := used, plan_row := plan_row, step := step, advantage := advantage, dropped := dropped
), (sequence, used)) AS fate
FROM read_parquet($fates) {where} GROUP BY ALL
"""
INSERT = f"""
INSERT INTO rollouts
WITH newest AS ({NEWEST_FATES.format(where="")}),
fresh AS (SELECT * FROM read_parquet($segments) WHERE iteration IN (SELECT unnest($iterations)))
SELECT {KEY.replace("iteration", "fresh.iteration").replace("row", "fresh.row")},
    fresh.iteration, fresh.row, fresh.group_name, fresh.index, fresh.prompt_id, fresh.reward,
    fresh.length, fresh.finished, fresh.no_spread, fresh.offset, fresh.size,
    fate.used, fate.plan_row, fate.step, fate.advantage, fate.dropped
FROM fresh LEFT JOIN newest
ON newest.born = fresh.iteration AND newest.index = fresh.index
    AND newest.group_name = coalesce(fresh.group_name, fresh.iteration || ':' || fresh.prompt_id)
"""
INSERT_WITHOUT_FATES = f"""
INSERT INTO rollouts
SELECT {KEY}, iteration, "row", group_name, "index", prompt_id, reward, length, finished, no_spread,
    "offset", size, NULL, NULL, NULL, NULL, NULL
FROM read_parquet($segments) WHERE iteration IN (SELECT unnest($iterations))
"""
UPDATE = f"""
UPDATE rollouts SET used = fate.used, plan_row = fate.plan_row, step = fate.step,
    advantage = fate.advantage, dropped = fate.dropped
FROM ({NEWEST_FATES.format(where="WHERE sequence > $applied")}) AS newest
WHERE newest.born = rollouts.iteration AND newest.index = rollouts.index
    AND newest.group_name
        = coalesce(rollouts.group_name, rollouts.iteration || ':' || rollouts.prompt_id)
"""


class RolloutTable:
    """The indexed rollouts of one run.

    Example:
        table = RolloutTable(index_folder)
        table.refresh()
        table.cursor().execute("SELECT count(*) FROM rollouts WHERE reward > 0").fetchone()
    """

    def __init__(self, folder: Path, spill_folder: Path) -> None:
        self.folder = folder  # of the index
        self.manifest = Manifest()
        self.version = 0  # grows with every change of the rows
        self._signature: tuple[int, int] | None = None
        self._loaded: dict[int, Signature] = {}
        self._fate_state = (-1, 0)  # epoch, sequence
        self._lock = threading.Lock()
        self._connection = duckdb.connect(
            ":memory:",
            config={
                "threads": THREADS,
                "memory_limit": MEMORY_LIMIT,
                "temp_directory": str(spill_folder),
                "preserve_insertion_order": False,
                # Nothing is ever fetched or loaded from elsewhere.
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            },
        )
        self._connection.execute(CREATE)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection for one request; requests run at the same time."""
        return self._connection.cursor()

    @property
    def iterations(self) -> dict[int, Signature]:
        """The iterations whose rollouts are in the table."""
        return self._loaded

    @property
    def indexed_share(self) -> float:
        """Share of the run's iterations that can be searched."""
        listed = self.manifest.listed
        return min(1.0, len(self._loaded) / listed) if listed else 1.0

    def segment_paths(self, iterations: set[int]) -> list[str]:
        """The segments that hold some of these iterations."""
        return [
            str(self.folder / segment.file)
            for segment in self.manifest.segments
            if not iterations.isdisjoint(segment.iterations)
        ]

    def refresh(self) -> None:
        """Follow the index; cheap where the manifest is the one that was read last."""
        with self._lock:
            signature = file_signature(self.folder / "manifest.json")
            if signature == self._signature:
                return
            # Segments of a superseded manifest stay for two minutes; should one be gone all the
            # same, the next manifest is read.
            for _ in range(3):
                manifest = read_manifest(self.folder)
                if manifest is None:
                    return
                try:
                    self._follow(manifest)
                except duckdb.IOException:
                    continue
                self._signature = signature
                return

    def _follow(self, manifest: Manifest) -> None:
        current = manifest.iterations
        changed = {key for key, value in self._loaded.items() if current.get(key) != value}
        new = sorted(key for key in current if self._loaded.get(key) != current[key])
        epoch_is_new = manifest.fate_epoch != self._fate_state[0]
        applied = 0 if epoch_is_new else self._fate_state[1]
        fate_paths = [str(self.folder / file) for file, _ in manifest.fates]
        self.manifest = manifest
        cursor = self._connection.cursor()
        cursor.execute("BEGIN")
        try:
            if changed:
                parameters: dict[str, Any] = {"iterations": sorted(changed)}
                cursor.execute(
                    "DELETE FROM rollouts WHERE iteration IN (SELECT unnest($iterations))",
                    parameters,
                )
            if epoch_is_new and self._fate_state[1]:
                cursor.execute(
                    "UPDATE rollouts SET used = NULL, plan_row = NULL, step = NULL, "
                    "advantage = NULL, dropped = NULL"
                )
            # Older rollouts first: the new ones are entered with everything that is known.
            if fate_paths and manifest.fate_sequence > applied and self._loaded:
                cursor.execute(UPDATE, {"fates": fate_paths, "applied": applied})
            if new:
                parameters = {
                    "segments": self.segment_paths(set(new)),
                    "iterations": new,
                }
                if fate_paths:
                    cursor.execute(INSERT, parameters | {"fates": fate_paths})
                else:
                    cursor.execute(INSERT_WITHOUT_FATES, parameters)
            cursor.execute("COMMIT")
        except BaseException:
            cursor.execute("ROLLBACK")
            raise
        self._loaded = current
        self._fate_state = (manifest.fate_epoch, manifest.fate_sequence)
        self.version += 1
