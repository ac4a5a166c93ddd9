"""The runs that are served: found, followed, and forgotten when they are gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from counterpoise.errors import PoiseError
from counterpoise.serve.answers import NotFoundError
from counterpoise.serve.audit.shelf import AuditLauncher, AuditShelf, AuditSubprocess
from counterpoise.serve.discover import find_runs
from counterpoise.serve.index.manifest import index_folder
from counterpoise.serve.index.query import RolloutSearch
from counterpoise.serve.index.table import PATIENCE_SECONDS, RolloutTable
from counterpoise.serve.run_reader import RunReader
from counterpoise.serve.run_state import locked_inodes

# Between searches for new run folders: SEARCH_SECONDS, or SEARCH_REST times the duration of the
# last search if that is longer, so that searching takes at most a tenth of a core.
SEARCH_SECONDS = 2.0
SEARCH_REST = 9.0
FRESH_SECONDS = 0.4  # a run that was read this recently is not looked at again
OPEN_TABLES = 3  # runs whose rollouts are in memory; the least recently used one is closed
FORGET_SECONDS = 600.0  # a run nobody looked at for this long is no longer indexed


class Indexer(Protocol):
    """What brings indexes up to date: a process beside the server, or this process in tests."""

    def follow(self, run_folder: Path, roots: list[Path]) -> None: ...
    def forget(self, run_folder: Path) -> None: ...
    def close(self) -> None: ...


class OpenTable:
    """A run's rollouts in memory, and who is using them."""

    def __init__(self, search: RolloutSearch) -> None:
        self.search = search
        self.users = 0
        self.last_use = time.monotonic()


class RunLibrary:
    """Every run below the served folders, by name.

    Example:
        library = RunLibrary([Path("out")], Path("~/.cache/counterpoise"), indexer)
        library.refresh()      # names of runs that changed, appeared or went
    """

    def __init__(
        self,
        folders: Sequence[Path],
        cache: Path,
        indexer: Indexer,
        patience: float = PATIENCE_SECONDS,
        auditor: AuditLauncher | None = None,
    ) -> None:
        """`patience`: seconds that a request waits for rollouts to be loaded, or for an audit."""
        self.patience = patience
        self.roots = [folder.resolve() for folder in folders]
        self.cache = cache
        self.indexer = indexer
        self.audits = AuditShelf(cache, auditor or AuditSubprocess())
        self.readers: dict[str, RunReader] = {}
        self._tables: dict[Path, OpenTable] = {}
        self._lock = threading.RLock()
        self.omissions: list[str] = []  # sentences about where runs were not searched for
        self._next_search = self._refreshed = float("-inf")
        self._untold: set[str] = set()  # changed since the last `refresh_changes`

    def close(self) -> None:
        self.indexer.close()
        self.audits.close()
        with self._lock:
            for entry in self._tables.values():
                entry.search.close()
            self._tables.clear()

    # -- following -----------------------------------------------------------------------------

    def refresh(self) -> set[str]:
        """Look at all runs; returns the names of those that changed, appeared or went."""
        with self._lock:
            now = time.monotonic()
            changed: set[str] = set()
            if now >= self._next_search:
                changed |= self._search_folders()
                seconds = time.monotonic() - now
                self._next_search = now + max(SEARCH_SECONDS, SEARCH_REST * seconds)
            if now - self._refreshed >= FRESH_SECONDS:
                self._refreshed = now
                locks = locked_inodes()
                changed |= {name for name, reader in self.readers.items() if reader.refresh(locks)}
                self._forget_unused(now)
            self._untold |= changed
            return changed

    def refresh_changes(self) -> set[str]:
        """Names of all runs that changed since the last call, whoever noticed it first."""
        with self._lock:
            self.refresh()
            changed, self._untold = self._untold, set()
            return changed

    def _search_folders(self) -> set[str]:
        search = find_runs(self.roots)
        runs, self.omissions = search.runs, search.describe_omissions()
        gone = {name for name, reader in self.readers.items() if runs.get(name) != reader.folder}
        for name in gone:
            self._close_table(self.readers.pop(name).folder)
        new = runs.keys() - self.readers.keys()
        for name in sorted(new):
            self.readers[name] = RunReader(name, runs[name], self.roots)
        if new:
            self._refreshed = float("-inf")
        return gone | new

    def _forget_unused(self, now: float) -> None:
        for folder, entry in list(self._tables.items()):
            if now - entry.last_use > FORGET_SECONDS:
                self._close_table(folder)

    def _close_table(self, folder: Path) -> None:
        entry = self._tables.get(folder)
        if entry and not entry.users:
            del self._tables[folder]
            entry.search.close()
            self.indexer.forget(folder)

    # -- reading -------------------------------------------------------------------------------

    def list_runs(self) -> list[RunReader]:
        """All runs, those that changed last first."""
        self.refresh()
        with self._lock:
            return sorted(self.readers.values(), key=lambda reader: -reader.updated)

    def reader(self, name: str) -> RunReader:
        self.refresh()
        try:
            return self.readers[name]
        except KeyError:
            raise NotFoundError(f"there is no run {name[:200]}") from None

    @contextmanager
    def search(self, reader: RunReader) -> Iterator[RolloutSearch]:
        """The run's rollouts; its index is brought up to date from now on."""
        with self._lock:
            entry = self._tables.get(reader.folder)
            if entry is None:
                self._make_room()
                folder = index_folder(self.cache, reader.folder)
                entry = OpenTable(RolloutSearch(RolloutTable(folder, self.cache / "spill")))
                self._tables[reader.folder] = entry
            entry.users += 1
            entry.last_use = time.monotonic()
        try:
            self.indexer.follow(reader.folder, self.roots)
            entry.search.table.refresh(self.patience)
            if problem := entry.search.table.problem:
                raise PoiseError(f"the index of {reader.name} cannot be read: {problem}")
            yield entry.search
        finally:
            with self._lock:
                entry.users -= 1

    def _make_room(self) -> None:
        idle = sorted(
            (folder for folder, entry in self._tables.items() if not entry.users),
            key=lambda folder: self._tables[folder].last_use,
        )
        while len(self._tables) >= OPEN_TABLES and idle:
            self._close_table(idle.pop(0))
