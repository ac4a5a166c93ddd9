"""A case of the torture, and the small runs that all of them break."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from server import RunServer, differing_names, folder_content
from tally import Tally

from counterpoise.store.check.check_run import check_run

CHECKED_SHARE = 0.1  # of the recovered runs that `poise check` reads as well


@dataclass(frozen=True, slots=True)
class Case:
    """One fault to inject, or a batch of them."""

    phase: str
    key: str  # the same in every call with the same seed
    fault: str  # its line of the table
    inject: Callable[[Tally], None]
    disk: str = ""  # digest of what the fault leaves; equal ones are resumed once


@dataclass(frozen=True, slots=True)
class Share:
    """Which cases are this worker's."""

    worker: int = 0
    processes: int = 1

    def __contains__(self, number: int) -> bool:
        return number % self.processes == self.worker


class Subject:
    """The runs of a server, what they write without a fault, and a folder to break them in."""

    def __init__(self, server: RunServer, folder: Path, seed: int) -> None:
        self.server, self.folder, self.seed = server, folder, seed
        self.case = folder / "case"
        self.reference = cache(self._make_reference)

    def rng(self, key: str) -> random.Random:
        return random.Random(f"{self.seed} {key}")

    def reference_folder(self, variant: int = 0) -> Path:
        self.reference(variant)
        return self.folder / f"reference-{variant}"

    def _make_reference(self, variant: int) -> dict[str, Any]:
        """What a run without a fault writes."""
        folder = self.folder / f"reference-{variant}"
        outcome = self.server.start_run(folder / "run", variant)
        assert outcome.code == 0, outcome.printed
        return folder_content(folder)

    def clear_case(self) -> Path:
        """An empty folder for a case; the path of its run."""
        shutil.rmtree(self.case, ignore_errors=True)
        self.case.mkdir(parents=True)
        return self.case / "run"

    def recover(self, tally: Tally, label: str, variant: int = 0) -> None:
        """Resume the run of the case, or start it where nothing of it is left, and compare."""
        reference = self.reference(variant)
        run = self.case / "run"
        run.mkdir(exist_ok=True)
        outcome = self.server.resume_run(run)
        tally.count(outcome)
        if outcome.code == 2 and not _has_checkpoint(run):
            # Nothing was saved yet: the folder may be used again, or started again.
            if (run / "config.toml").exists():
                outcome = self.server.resume_run(run, "--from-start")
            else:
                shutil.rmtree(run, ignore_errors=True)
                outcome = self.server.start_run(run, variant)
            tally.count(outcome)
        if outcome.code != 0:
            tally.blame(f"{label}: exit code {outcome.code}: {outcome.printed[-300:]}")
        elif names := differing_names(self.case, reference):
            tally.blame(f"{label}: {names[:4]} differ")
        elif self.rng(label).random() < CHECKED_SHARE and (findings := check_run(run).findings):
            tally.blame(f"{label}: poise check: {findings[:2]}")


def _has_checkpoint(run: Path) -> bool:
    return any((run / "checkpoints").glob("iteration_*/manifest.json"))
