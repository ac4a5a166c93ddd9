"""Bring the index of a run up to date, a bounded piece of work at a time.

Only one process writes the index of a run (a lock in the cache folder); others read it. Newest
iterations come first: they are what somebody who opens a run wants to see.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import pyarrow.parquet as pq

from counterpoise.serve.discover import is_inside
from counterpoise.serve.index import fates
from counterpoise.serve.index.fates import Fate
from counterpoise.serve.index.manifest import (
    LogPlace,
    Manifest,
    Segment,
    Signature,
    index_folder,
    read_manifest,
    write_manifest,
)
from counterpoise.serve.index.segments import (
    SegmentDraft,
    choose_merge,
    merge,
    without_iterations,
)
from counterpoise.store.parquet_errors import PARQUET_ERRORS
from counterpoise.store.schema import step_file_name

MOST_SMALL_FATE_FILES = 12
SMALL_FATE_ROWS = 100_000
RETRY_SECONDS = 10.0  # until a file that could not be read is tried again
# As the store names them: at least five digits, and more only without leading zeros.
STEP_FILE = re.compile(r"step_([0-9]{5}|[1-9][0-9]{5,8})\.jsonl")
LINE_READERS: dict[str, Callable[[bytes], Iterator[Fate]]] = {
    "plans": fates.plan_fates,
    "drops": fates.drop_fates,
}


class IndexWriter:
    """The index of one run, as the process that writes it sees it.

    Example:
        with IndexWriter(run_folder, cache, roots) as writer:
            while writer.work():    # a second of work or less; True while there is more
                pass
    """

    def __init__(self, run_folder: Path, cache: Path, roots: Sequence[Path]) -> None:
        self.run_folder = run_folder
        self.roots = list(roots)
        self.folder = index_folder(cache, run_folder)
        self._lock: IO[bytes] | None = None
        self._manifest: Manifest | None = None
        self._retry_at: dict[int, float] = {}  # iterations of manifest.unreadable; absent: now

    def __enter__(self) -> IndexWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock, so that another server can go on with the index."""
        if self._lock:
            self._lock.close()
            self._lock = None

    def work(self) -> bool:
        """Do a bounded piece of work; returns whether there is more to do."""
        if not self._take_lock():
            return False
        if self._manifest is None:
            self._manifest = self._read_index() or self._start_again()
        has_more_fates = self._follow_logs(self._manifest)
        has_more_rollouts = self._follow_rollouts(self._manifest)
        return has_more_fates or has_more_rollouts

    def _take_lock(self) -> bool:
        if self._lock is None:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = (self.folder / "lock").open("ab")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                return False
            except OSError:
                pass  # no locks on this file system: assume that no other server uses the cache
            self._lock = lock
            self._manifest = None  # another server may have written it meanwhile
        return True

    def _read_index(self) -> Manifest | None:
        """The index that an earlier server left; None if there is none, or a damaged one."""
        manifest = read_manifest(self.folder)
        if manifest is None:
            return None
        try:
            for file in manifest.files:
                pq.read_metadata(self.folder / file)
        # After a power cut a file may be empty although the manifest names it.
        except PARQUET_ERRORS:
            return None
        return manifest

    def _start_again(self) -> Manifest:
        """An empty index; files of an older version or of a damaged index are removed."""
        for leftover in self.folder.glob("*.parquet"):
            leftover.unlink(missing_ok=True)
        # A new epoch: a reader that still has rows of the old index then applies all fates anew,
        # although their sequence numbers start from 1 again.
        manifest = Manifest(run=str(self.run_folder), fate_epoch=time.time_ns())
        write_manifest(self.folder, manifest)
        return manifest

    # -- rollouts ------------------------------------------------------------------------------

    def _follow_rollouts(self, manifest: Manifest) -> bool:
        files = self._list_rollouts()
        indexed = manifest.iterations
        gone = {key for key, signature in indexed.items() if files.get(key) != signature}
        known_unreadable = dict(manifest.unreadable)
        manifest.unreadable = {key: why for key, why in known_unreadable.items() if key in files}
        is_changed = manifest.num_rollout_files != len(files)
        manifest.num_rollout_files = len(files)
        if gone:
            self._remove_iterations(manifest, gone)
            is_changed = True
        now = time.monotonic()
        new = [
            key
            for key in sorted(files, reverse=True)
            if (key not in indexed or key in gone) and self._retry_at.get(key, now) <= now
        ]
        draft = SegmentDraft()
        num_tried = 0
        for iteration in new:
            if draft.is_full:
                break
            self._add_file(manifest, draft, iteration, files[iteration])
            num_tried += 1
        if draft.iterations:
            manifest.segments.append(draft.write(self.folder, manifest.new_file("rollouts")))
            is_changed = True
        if small := choose_merge(manifest.segments):
            merged = merge(self.folder, manifest.new_file("rollouts"), small)
            manifest.segments = [each for each in manifest.segments if each not in small]
            manifest.segments.append(merged)
            manifest.supersede([segment.file for segment in small])
            is_changed = True
        if is_changed or manifest.unreadable != known_unreadable:
            write_manifest(self.folder, manifest)
        return num_tried < len(new)

    def _list_rollouts(self) -> dict[int, Signature]:
        """Iteration -> signature of its file, without links that lead out of the served folders."""
        folder = self.run_folder / "rollouts"
        if not is_inside(folder, self.roots):
            return {}
        try:
            with os.scandir(folder) as entries:
                step_files = [
                    (int(match[1]), entry)
                    for entry in entries
                    if (match := STEP_FILE.fullmatch(entry.name))
                ]
        except (FileNotFoundError, NotADirectoryError):  # none yet, or the run was deleted
            return {}
        files: dict[int, Signature] = {}
        for iteration, entry in step_files:
            try:
                if not entry.is_symlink() or is_inside(Path(entry.path), self.roots):
                    status = entry.stat()
                    files[iteration] = (status.st_size, status.st_mtime_ns)
            except OSError:  # deleted meanwhile, or a link to nothing
                continue
        return files

    def _add_file(
        self, manifest: Manifest, draft: SegmentDraft, iteration: int, signature: Signature
    ) -> None:
        """Read a file into the draft, or note in the manifest why it cannot be read."""
        path = self.run_folder / step_file_name("rollouts", iteration)
        try:
            draft.add(iteration, path, signature)
        except OSError as fault:
            # Its size and time may stay the same when it is mended, as after chmod.
            manifest.unreadable[iteration] = f"{path.parent.name}/{path.name}: {fault.strerror}"
            self._retry_at[iteration] = time.monotonic() + RETRY_SECONDS
        else:
            manifest.unreadable.pop(iteration, None)
            self._retry_at.pop(iteration, None)

    def _remove_iterations(self, manifest: Manifest, gone: set[int]) -> None:
        kept: list[Segment] = []
        for segment in manifest.segments:
            if not gone & segment.iterations.keys():
                kept.append(segment)
                continue
            manifest.supersede([segment.file])
            file = manifest.new_file("rollouts")
            rest = without_iterations(self.folder, file, segment, gone)
            if rest:
                kept.append(rest)
        manifest.segments = kept

    # -- plans and drops -----------------------------------------------------------------------

    def _follow_logs(self, manifest: Manifest) -> bool:
        events: list[Fate] = []
        has_more = is_changed = False
        for log, read_line in LINE_READERS.items():
            path = self.run_folder / f"{log}.jsonl"
            if not is_inside(path, self.roots):
                continue
            place = manifest.places.get(log, LogPlace())
            lines, new_place, is_another = fates.read_new_lines(path, place)
            if is_another:  # the run was resumed: both logs are read again from the start
                manifest.supersede([file for file, _ in manifest.fates])
                manifest.fates, manifest.places = [], {}
                manifest.fate_epoch += 1
                write_manifest(self.folder, manifest)
                return True
            if lines:
                for line in lines:
                    events += read_line(line)
                manifest.places[log] = new_place
                is_changed = has_more = True
        if events:
            file = manifest.new_file("fates")
            manifest.fate_sequence += 1
            fates.write_fates(self.folder / file, events, manifest.fate_sequence)
            manifest.fates.append((file, len(events)))
        small = [entry for entry in manifest.fates if entry[1] < SMALL_FATE_ROWS]
        if len(small) > MOST_SMALL_FATE_FILES:
            merged = manifest.new_file("fates")
            names = [file for file, _ in small]
            fates.merge_fates(self.folder, merged, names)
            manifest.supersede(names)
            manifest.fates = [entry for entry in manifest.fates if entry not in small]
            manifest.fates.append((merged, sum(rows for _, rows in small)))
        if is_changed:
            write_manifest(self.folder, manifest)
        return has_more
