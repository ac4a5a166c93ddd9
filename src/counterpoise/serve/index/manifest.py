"""Which files make up a run's index, and of which files of the run they were made.

    CACHE/runs/NAME-DIGEST/
      manifest.json              this record, replaced atomically
      rollouts-000017.parquet    segments: rows of whole iterations, numbers and folded texts
      fates-000018.parquet       what became of rollouts: from plans.jsonl and drops.jsonl
      lock                       held by the process that writes the index

A segment is never changed: a new manifest names its successor. Readers may still have the old one
open by its name, so superseded files stay for a while. An index of another version is rebuilt.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from counterpoise.files import atomic_write

VERSION = 8
MANIFEST = "manifest.json"
KEEP_SUPERSEDED_SECONDS = 120.0
Signature = tuple[int, int]  # size and modification time (ns) of a file


@dataclass(frozen=True, slots=True)
class Segment:
    """One parquet file of rollouts.

    Example:
        Segment("rollouts-000001.parquet", {12: (7_340_032, 17...)}, rows=1024, text_bytes=1 << 20)
    """

    file: str
    iterations: dict[int, Signature]
    rows: int
    text_bytes: int
    damaged: dict[int, str] = field(default_factory=dict)  # iteration -> what is wrong with it


@dataclass(frozen=True, slots=True)
class LogPlace:
    """How far a log was read, and how to notice that it is another one now."""

    inode: int = 0
    offset: int = 0
    tail_digest: str = ""


@dataclass(slots=True)
class Manifest:
    """The index of one run."""

    run: str = ""
    next_number: int = 1
    segments: list[Segment] = field(default_factory=list)
    fates: list[tuple[str, int]] = field(default_factory=list)  # (file, rows)
    fate_epoch: int = 0  # grows when plans and drops are read again from the start
    fate_sequence: int = 0  # of the events written last; see fates.py
    places: dict[str, LogPlace] = field(default_factory=dict)  # of plans.jsonl and drops.jsonl
    superseded: list[tuple[str, float]] = field(default_factory=list)  # (file, time)
    num_rollout_files: int = -1  # in the run's rollouts/; -1: nobody has looked yet
    unreadable: dict[int, str] = field(default_factory=dict)  # iteration -> why; tried again

    @property
    def iterations(self) -> dict[int, Signature]:
        """Every indexed iteration with the signature of the file it was read from."""
        return {
            iteration: signature
            for segment in self.segments
            for iteration, signature in segment.iterations.items()
        }

    @property
    def files(self) -> list[str]:
        """The parquet files that make up the index."""
        return [
            *(segment.file for segment in self.segments),
            *(file for file, _ in self.fates),
        ]

    def new_file(self, kind: str) -> str:
        name = f"{kind}-{self.next_number:06d}.parquet"
        self.next_number += 1
        return name

    def supersede(self, files: list[str]) -> None:
        self.superseded += [(file, time.time()) for file in files]


def index_folder(cache: Path, run_folder: Path) -> Path:
    """The folder of a run's index: a readable name, and a digest that tells equal names apart."""
    digest = hashlib.sha256(os.fsencode(run_folder)).hexdigest()[:16]
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", run_folder.name)[:60]
    return cache / "runs" / f"{readable}-{digest}"


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest; None if there is none, or one that this version cannot read."""
    try:
        record = json.loads((folder / MANIFEST).read_bytes())
        if record.pop("version") != VERSION:
            return None
        record["segments"] = [_read_segment(segment) for segment in record["segments"]]
        record["places"] = {log: LogPlace(**place) for log, place in record["places"].items()}
        record["fates"] = [(str(file), int(rows)) for file, rows in record["fates"]]
        record["unreadable"] = {
            int(iteration): str(text) for iteration, text in record["unreadable"].items()
        }
        record["superseded"] = [(str(file), float(when)) for file, when in record["superseded"]]
        manifest = Manifest(**record)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return manifest if all((folder / name).is_file() for name in manifest.files) else None


def _read_segment(record: dict[str, Any]) -> Segment:
    return Segment(
        file=str(record["file"]),
        iterations={
            int(iteration): (int(size), int(modified))
            for iteration, (size, modified) in record["iterations"].items()
        },
        rows=int(record["rows"]),
        text_bytes=int(record["text_bytes"]),
        damaged={int(iteration): str(text) for iteration, text in record["damaged"].items()},
    )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest, then remove files that no reader can still be using."""
    oldest = time.time() - KEEP_SUPERSEDED_SECONDS
    expired = [file for file, when in manifest.superseded if when < oldest]
    manifest.superseded = [entry for entry in manifest.superseded if entry[1] >= oldest]
    # An index that a power cut damages is rebuilt (`IndexWriter`), so nothing is flushed to disk.
    with atomic_write(folder / MANIFEST, durable=False) as temporary:
        temporary.write_text(json.dumps({"version": VERSION, **asdict(manifest)}))
    for file in expired:
        (folder / Path(file).name).unlink(missing_ok=True)
