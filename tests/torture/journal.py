"""What a torture has done, in a folder: an interrupted call goes on where it stopped.

about.json         seed and digest of the sources; another seed or other code is refused
worker-N.jsonl     one line for each case: its key, its counts, its seconds
calls.jsonl        seconds and number of processes of every call, a line every few seconds
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cases import Case
from tally import Tally

SOURCES = Path(__file__).parents[2] / "src" / "counterpoise"


class StateError(Exception):
    """The state folder belongs to another torture."""


@dataclass(slots=True)
class Journal:
    folder: Path
    keys: defaultdict[str, set[str]] = field(  # of cases that were done, by phase
        default_factory=lambda: defaultdict(set)
    )
    disks: set[str] = field(default_factory=set)  # contents of folders that were resumed
    injected: Counter[str] = field(default_factory=Counter)  # by phase

    @classmethod
    def open(cls, folder: Path, seed: int) -> Journal:
        """Open a state folder, or start one."""
        folder.mkdir(parents=True, exist_ok=True)
        about = {"seed": seed, "sources": digest_sources()}
        about_file = folder / "about.json"
        if not about_file.exists():
            about_file.write_text(json.dumps(about))
        elif json.loads(about_file.read_text()) != about:
            raise StateError(
                f"{folder} was started with another --seed or with other sources: "
                "choose another --state"
            )
        journal = cls(folder)
        for record in journal.records():
            journal.keys[record["phase"]].add(record["key"])
            journal.disks.add(record.get("disk", ""))
            journal.injected[record["phase"]] += record["counts"].get("injected", 0)
        return journal

    def records(self) -> Iterator[dict[str, Any]]:
        for path in sorted(self.folder.glob("worker-*.jsonl")):
            yield from _complete_records(path)

    def tallies(self) -> list[Tally]:
        return [Tally(record["fault"], **record["counts"]) for record in self.records()]

    def note_case(self, worker: int, case: Case, tally: Tally, seconds: float) -> None:
        counts = {name: count for name, count in asdict(tally).items() if count}
        del counts["fault"]
        record = {
            "phase": case.phase,
            "key": case.key,
            "fault": case.fault,
            "counts": counts,
            "seconds": round(seconds, 3),
        }
        if case.disk:
            record["disk"] = case.disk
            self.disks.add(case.disk)
        self.keys[case.phase].add(case.key)
        self.injected[case.phase] += tally.injected
        _append(self.folder / f"worker-{worker}.jsonl", record)

    def note_time(self, seconds: float, processes: int) -> None:
        _append(
            self.folder / "calls.jsonl",
            {"seconds": round(seconds, 3), "processes": processes, "at": int(time.time())},
        )

    def minutes_by_processes(self) -> dict[int, float]:
        """Minutes of all calls together, by their number of processes."""
        minutes: Counter[int] = Counter()
        for record in _complete_records(self.folder / "calls.jsonl"):
            minutes[record["processes"]] += record["seconds"] / 60
        return dict(minutes)


def digest_sources() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _append(path: Path, record: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def _complete_records(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):  # a kill may have cut the last line
                yield json.loads(line)
