"""The rollouts of one run as a table in memory, for filters, sorting and paging.

The table has the numbers of every indexed rollout, about 100 bytes each; texts stay in the
segments. It follows the manifest: iterations whose files changed are taken out and read again, new
ones are added, and what plans and drops say of older rollouts is entered when it arrives. A reader
sees the table before or after such a step, never between (DuckDB's transactions).

A million rollouts take seconds to enter, newest first. A thread does it, a segment at a time; a
request waits for it only a moment, and its answer says which share of the run it is about.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from counterpoise.errors import first_line
from counterpoise.serve.index.manifest import MANIFEST, Manifest, Signature, read_manifest
from counterpoise.serve.log_tail import file_signature

MEMORY_LIMIT = "300MB"
THREADS = 2
LOAD_ATTEMPTS = 3
PATIENCE_SECONDS = 0.4  # that a request waits for rows that are being entered
# A row's number in the whole run: iterations are below 2^31, rows of an iteration below 2^32.
KEY = "iteration::BIGINT * 4294967296 + row"
CREATE = """
CREATE TABLE rollouts (
    key BIGINT, iteration INTEGER, "row" INTEGER, group_name VARCHAR, "index" INTEGER,
    prompt_id VARCHAR, reward DOUBLE, length INTEGER, finished BOOLEAN,
    timed_out BOOLEAN, no_spread BOOLEAN, anchor BOOLEAN,
    "offset" BIGINT, size INTEGER,
    stored_advantage DOUBLE,  -- in rollouts/, where no plan has one
    decided_in INTEGER, plan_row INTEGER, step INTEGER, advantage DOUBLE, dropped VARCHAR
)
"""
# A rollout can have several events: a plan of a run that was resumed, say. The last one holds.
NEWEST_FATES = """
SELECT born, group_name, "index", arg_max(struct_pack(
    decided_in := decided_in, plan_row := plan_row, step := step, advantage := advantage,
    dropped := dropped
), (sequence, decided_in)) AS fate
FROM read_parquet($fates) {where} GROUP BY ALL
"""
INSERT = f"""
INSERT INTO rollouts
WITH newest AS ({NEWEST_FATES.format(where="WHERE born BETWEEN $low AND $high")}),
fresh AS (SELECT * FROM read_parquet($segments) WHERE iteration IN (SELECT unnest($iterations)))
SELECT {KEY.replace("iteration", "fresh.iteration").replace("row", "fresh.row")},
    fresh.iteration, fresh.row, fresh.group_name, fresh.index, fresh.prompt_id, fresh.reward,
    fresh.length, fresh.finished, fresh.timed_out, fresh.no_spread, fresh.anchor,
    fresh.offset, fresh.size, fresh.advantage,
    fate.decided_in, fate.plan_row, fate.step, coalesce(fate.advantage, fresh.advantage),
    fate.dropped
FROM fresh LEFT JOIN newest
ON newest.born = fresh.iteration AND newest.index = fresh.index
    AND newest.group_name = coalesce(fresh.group_name, fresh.iteration || ':' || fresh.prompt_id)
"""
INSERT_WITHOUT_FATES = f"""
INSERT INTO rollouts
SELECT {KEY}, iteration, "row", group_name, "index", prompt_id, reward, length, finished,
    timed_out, no_spread, anchor,
    "offset", size, advantage, NULL, NULL, NULL, advantage, NULL
FROM read_parquet($segments) WHERE iteration IN (SELECT unnest($iterations))
"""
UPDATE = f"""
UPDATE rollouts SET decided_in = fate.decided_in, plan_row = fate.plan_row, step = fate.step,
    advantage = coalesce(fate.advantage, stored_advantage), dropped = fate.dropped
FROM ({NEWEST_FATES.format(where="WHERE sequence > $applied")}) AS newest
WHERE newest.born = rollouts.iteration AND newest.index = rollouts.index
    AND newest.group_name
        = coalesce(rollouts.group_name, rollouts.iteration || ':' || rollouts.prompt_id)
"""


class RolloutTable:
    """The indexed rollouts of one run.

    Example:
        table = RolloutTable(index_folder, spill_folder)
        table.refresh()
        table.cursor().execute("SELECT count(*) FROM rollouts WHERE reward > 0").fetchone()
    """

    def __init__(self, folder: Path, spill_folder: Path) -> None:
        self.folder = folder  # of the index
        self.manifest = Manifest()
        self.version = 0  # grows with every change of the rows
        self.problem: str | None = None  # why the index could not be read at the last attempt
        self._signature: tuple[int, int] | None = None
        self._loaded: dict[int, Signature] = {}
        self._fate_state = (-1, 0)  # epoch, sequence
        self._lock = threading.Lock()
        self._loader: threading.Thread | None = None
        self._is_closed = False
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
        self._is_closed = True
        if self._loader:
            self._loader.join()
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
        """Share of the run's readable iterations that are in the table."""
        if self.manifest.num_rollout_files < 0:
            return 0.0
        readable = self.manifest.num_rollout_files - len(self.manifest.unreadable)
        return min(1.0, len(self._loaded) / readable) if readable > 0 else 1.0

    def segment_paths(self, iterations: set[int]) -> list[str]:
        """The segments that hold some of these iterations."""
        return _segment_paths(self.folder, self.manifest, iterations)

    def refresh(self, patience: float = PATIENCE_SECONDS) -> None:
        """Follow the index; returns when the rows are entered, or after `patience` seconds."""
        with self._lock:
            if file_signature(self.folder / MANIFEST) == self._signature:
                return
            if self._loader is None or not self._loader.is_alive():
                self._loader = threading.Thread(target=self._load, daemon=True)
                self._loader.start()
            loader = self._loader
        loader.join(patience)

    def _load(self) -> None:
        # Segments of a superseded manifest stay for two minutes; should one be gone all the same,
        # the manifest that replaced it is read.
        problem = None
        for _ in range(LOAD_ATTEMPTS):
            signature = file_signature(self.folder / MANIFEST)
            manifest = read_manifest(self.folder)
            if manifest is None:
                return
            try:
                self._follow(manifest)
            except duckdb.Error as fault:
                problem = (
                    f"{first_line(fault)[:200]}. If this lasts: stop poise serve, delete "
                    f"{self.folder}, start it again"
                )
                continue
            if not self._is_closed:
                self._signature = signature
            self.problem = None
            return
        self.problem = problem

    def _follow(self, manifest: Manifest) -> None:
        current = manifest.iterations
        self.manifest = manifest
        self._remove_changed(current)
        self._enter_fates(manifest)
        new = {key for key in current if key not in self._loaded}
        pieces = [sorted(new & segment.iterations.keys()) for segment in manifest.segments]
        for piece in sorted(filter(None, pieces), key=max, reverse=True):
            if self._is_closed:
                return
            self._enter_rollouts(manifest, piece)

    def _remove_changed(self, current: dict[int, Signature]) -> None:
        changed = sorted(key for key, value in self._loaded.items() if current.get(key) != value)
        if changed:
            with self._transaction() as cursor:
                cursor.execute(
                    "DELETE FROM rollouts WHERE iteration IN (SELECT unnest($iterations))",
                    {"iterations": changed},
                )
            self._finish({key: self._loaded[key] for key in self._loaded.keys() - set(changed)})

    def _enter_fates(self, manifest: Manifest) -> None:
        """What plans and drops say of rollouts that are in the table already."""
        state = (manifest.fate_epoch, manifest.fate_sequence)
        if state == self._fate_state:
            return
        is_another_log = manifest.fate_epoch != self._fate_state[0]
        fates = [str(self.folder / file) for file, _ in manifest.fates]
        if self._loaded:
            with self._transaction() as cursor:
                if is_another_log:
                    cursor.execute(
                        "UPDATE rollouts SET decided_in = NULL, plan_row = NULL, step = NULL, "
                        "advantage = stored_advantage, dropped = NULL"
                    )
                if fates:
                    applied = 0 if is_another_log else self._fate_state[1]
                    cursor.execute(UPDATE, {"fates": fates, "applied": applied})
        self._fate_state = state
        self._finish(self._loaded)

    def _enter_rollouts(self, manifest: Manifest, iterations: list[int]) -> None:
        """Rollouts of some iterations of one segment, with all that is known of them."""
        parameters: dict[str, Any] = {
            "segments": _segment_paths(self.folder, manifest, set(iterations)),
            "iterations": iterations,
        }
        with self._transaction() as cursor:
            if manifest.fates:
                parameters["fates"] = [str(self.folder / file) for file, _ in manifest.fates]
                parameters |= {"low": min(iterations), "high": max(iterations)}
                cursor.execute(INSERT, parameters)
            else:
                cursor.execute(INSERT_WITHOUT_FATES, parameters)
        current = manifest.iterations
        self._finish({**self._loaded, **{key: current[key] for key in iterations}})

    def _finish(self, loaded: dict[int, Signature]) -> None:
        self._loaded = loaded
        self.version += 1

    @contextmanager
    def _transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        cursor = self._connection.cursor()
        cursor.execute("BEGIN")
        try:
            yield cursor
            cursor.execute("COMMIT")
        except BaseException:
            cursor.execute("ROLLBACK")
            raise
        finally:
            cursor.close()


def _segment_paths(folder: Path, manifest: Manifest, iterations: set[int]) -> list[str]:
    return [
        str(folder / segment.file)
        for segment in manifest.segments
        if not iterations.isdisjoint(segment.iterations)
    ]
