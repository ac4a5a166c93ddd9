"""Runs that are laid over each other: a name, a look, and what each had cost by every iteration.

    costs    iteration, rollouts sampled so far, optimizer steps so far; iteration 0 is the start

A number of an iteration stands where the iteration ended. An imported run does not tell its steps,
and its rollouts are those that were imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError
from counterpoise.report.pages.imported import read_imported
from counterpoise.report.run_data import RunData
from counterpoise.report.texts import make_visible
from counterpoise.store.folder import is_imported, is_run


class RunStyle(NamedTuple):
    colour: str  # of page.css
    dash: list[int]
    shape: str  # of points: an SVG path from -1 to 1


SOLID, DASHED = [1, 0], [5, 3]
# Colours of one dash differ for every kind of colour blindness; those that do not have another.
RUN_STYLES = (
    RunStyle("positive", SOLID, "M-.8,0A.8,.8,0,1,1,.8,0A.8,.8,0,1,1,-.8,0Z"),
    RunStyle("negative", SOLID, "M-.7,-.7L.7,-.7L.7,.7L-.7,.7Z"),
    RunStyle("ink", SOLID, "M0,-.9L.9,.7L-.9,.7Z"),
    RunStyle("green", DASHED, "M0,-1L1,0L0,1L-1,0Z"),
    RunStyle("violet", DASHED, "M0,.9L.9,-.7L-.9,-.7Z"),
    RunStyle("gold", DASHED, "M-.3,-1H.3V-.3H1V.3H.3V1H-.3V.3H-1V-.3H-.3Z"),
)


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRun:
    """Example: read_compared([Path("out/qb"), Path("out/shuffled")])[1].name == "shuffled" """

    name: str
    look: RunStyle
    run: RunData
    source: str = ""  # of another trainer's run: who wrote it

    @property
    def config(self) -> RunConfig | None:
        """None: nobody knows what another trainer was told."""
        return None if self.source else self.run.config

    @property
    def knows_steps(self) -> bool:
        """Rollouts that were imported do not; a run that our adapter planned does."""
        return not self.source or bool(self.run.plans)

    @property
    def costs(self) -> dict[int, dict[str, int | None]]:
        """By iteration: {"iteration": 2, "rollouts": 256, "steps": 8}."""
        metrics = self.run.metrics
        rollouts = accumulate((record["rollouts"] for record in metrics), initial=0)
        told = all("steps" in record for record in metrics) and self.knows_steps
        steps = accumulate((record.get("steps", 0) for record in metrics), initial=0)
        iterations = [0, *(record["iteration"] for record in metrics)]
        return {
            i: {"iteration": i, "rollouts": r, "steps": s if told else None}
            for i, r, s in zip(iterations, rollouts, steps, strict=True)
        }

    def with_costs(self, points: Sequence[tuple[int, float]]) -> list[dict[str, Any]]:
        """(iteration, value) -> records with their costs."""
        costs = self.costs
        return [{**costs[i], "value": value} for i, value in points if i in costs]


def read_compared_runs(folders: Sequence[Path]) -> list[ComparedRun]:
    """In the order given, each with a look of its own."""
    if len(folders) > len(RUN_STYLES):
        raise PoiseError(
            f"{len(folders)} runs are too many for one page: name at most {len(RUN_STYLES)}; "
            "poise experiment compares arms over many seeds"
        )
    seen: dict[Path, Path] = {}
    for folder in folders:
        if first := seen.get(folder.resolve()):
            same = "is named twice" if first == folder else f"is the same run as {first}"
            raise PoiseError(f"{folder} {same}: name each run once")
        seen[folder.resolve()] = folder
    read = [_read(folder) for folder in folders]
    return [
        ComparedRun(name, look, run, source)
        for name, look, (run, source) in zip(
            distinct_names(list(seen)), RUN_STYLES, read, strict=False
        )
    ]


def _read(folder: Path) -> tuple[RunData, str]:
    if is_imported(folder):
        run, source, _ = read_imported(folder)
        return run, source
    # An evaluation or a folder of studies keeps its results in JSON files.
    if folder.is_dir() and not is_run(folder) and any(folder.glob("*.json")):
        raise PoiseError(
            f"{folder} is no run, and only runs are compared: poise report {folder} shows it alone"
        )
    return RunData.read(folder), ""


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Of the folders; equal ones with as much of the path before them as tells them apart.

    Example:
        >>> names([Path("/a/x/run"), Path("/a/y/run"), Path("/a/other")])
        ['x/run', 'y/run', 'other']
    """
    depth = [1] * len(paths)
    while True:
        found = [
            make_visible("/".join(path.parts[-d:])) for path, d in zip(paths, depth, strict=True)
        ]
        equal = [
            i
            for i, path in enumerate(paths)
            if found.count(found[i]) > 1 and depth[i] < len(path.parts)
        ]
        if not equal:
            return found
        for i in equal:
            depth[i] += 1


def join_words(words: Sequence[str]) -> str:
    """
    Example:
        >>> listed(["a"]), listed(["a", "b", "c"])
        ('a', 'a, b and c')
    """
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last
