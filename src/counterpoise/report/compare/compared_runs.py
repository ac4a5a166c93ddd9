"""Runs of a comparison: each with a distinct name, a line style, and its cost up to each iteration.

    costs    iteration, rollouts sampled so far, optimizer steps so far; iteration 0 is the start

A value measured in an iteration is drawn at the cost reached by the end of that iteration. Imported
rollouts do not tell how many optimizer steps were made, and rollouts that were not imported are not
counted.
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
    colour: str  # a colour name of page.css
    dash: list[int]
    shape: str  # of points: an SVG path within -1 to 1


SOLID, DASHED = [1, 0], [5, 3]
# Colours with the same dash pattern stay distinguishable in every kind of colour blindness.
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
    """One run of a comparison.

    Example:
        read_compared_runs([Path("out/qb"), Path("out/shuffled")])[1].name == "shuffled"
    """

    name: str
    style: RunStyle
    data: RunData
    source: str = ""  # the trainer that wrote an imported run; "" for a run of ours

    @property
    def config(self) -> RunConfig | None:
        """Options of the run; None for an imported one, whose options are unknown."""
        return None if self.source else self.data.config

    @property
    def knows_steps(self) -> bool:
        """Whether optimizer steps are known: not for imported rollouts without plans."""
        return not self.source or bool(self.data.plans)

    @property
    def costs(self) -> dict[int, dict[str, int | None]]:
        """Cost by iteration: {2: {"iteration": 2, "rollouts": 256, "steps": 8}}."""
        metrics = self.data.metrics
        rollouts = accumulate((record["rollouts"] for record in metrics), initial=0)
        # Without a step count for every iteration the sum would be wrong: it is unknown then.
        steps_known = all("steps" in record for record in metrics) and self.knows_steps
        steps = accumulate((record.get("steps", 0) for record in metrics), initial=0)
        iterations = [0, *(record["iteration"] for record in metrics)]
        return {
            iteration: {
                "iteration": iteration,
                "rollouts": rollout_count,
                "steps": step_count if steps_known else None,
            }
            for iteration, rollout_count, step_count in zip(
                iterations, rollouts, steps, strict=True
            )
        }

    def with_costs(self, points: Sequence[tuple[int, float]]) -> list[dict[str, Any]]:
        """Turn (iteration, value) pairs into records that include the costs of the iteration."""
        costs = self.costs
        return [
            {**costs[iteration], "value": value}
            for iteration, value in points
            if iteration in costs
        ]


def read_compared_runs(folders: Sequence[Path]) -> list[ComparedRun]:
    """Read the runs in the order given and assign each its own style."""
    if len(folders) > len(RUN_STYLES):
        raise PoiseError(
            f"{len(folders)} runs are too many for one page: give at most {len(RUN_STYLES)}; "
            "poise experiment compares arms over many seeds"
        )
    folder_by_resolved_path: dict[Path, Path] = {}
    for folder in folders:
        if earlier_folder := folder_by_resolved_path.get(folder.resolve()):
            is_same = earlier_folder == folder
            problem = "is named twice" if is_same else f"is the same run as {earlier_folder}"
            raise PoiseError(f"{folder} {problem}: give each run once")
        folder_by_resolved_path[folder.resolve()] = folder
    loaded_runs = [_read_run(folder) for folder in folders]
    return [
        ComparedRun(run_name, style, data, source)
        for run_name, style, (data, source) in zip(
            distinct_names(list(folder_by_resolved_path)), RUN_STYLES, loaded_runs, strict=False
        )
    ]


def _read_run(folder: Path) -> tuple[RunData, str]:
    """(the run, the trainer that wrote it); the trainer is "" for a run of ours."""
    if is_imported(folder):
        run, origin = read_imported(folder)
        return run, origin.source
    # An evaluation or a folder of studies keeps its results in JSON files.
    if folder.is_dir() and not is_run(folder) and any(folder.glob("*.json")):
        raise PoiseError(
            f"{folder} is not a run, and only runs can be compared: poise report {folder} shows it "
            "by itself"
        )
    return RunData.read(folder), ""


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Names of the folders; equal names get as many parent folders as tell them apart.

    Example:
        >>> distinct_names([Path("/a/x/run"), Path("/a/y/run"), Path("/a/other")])
        ['x/run', 'y/run', 'other']
    """
    # Only names that are still ambiguous get longer, by one path component at a time.
    parts_shown = [1] * len(paths)
    while True:
        labels = [
            make_visible("/".join(path.parts[-part_count:]))
            for path, part_count in zip(paths, parts_shown, strict=True)
        ]
        ambiguous_indices = [
            path_index
            for path_index, path in enumerate(paths)
            if labels.count(labels[path_index]) > 1 and parts_shown[path_index] < len(path.parts)
        ]
        if not ambiguous_indices:
            return labels
        for path_index in ambiguous_indices:
            parts_shown[path_index] += 1


def join_words(words: Sequence[str]) -> str:
    """Join words with commas and "and".

    Example:
        >>> join_words(["a"]), join_words(["a", "b", "c"])
        ('a', 'a, b and c')
    """
    *leading_words, last_word = words
    return f"{', '.join(leading_words)} and {last_word}" if leading_words else last_word
