"""The files of a run as an audit reads them: logs at once, plans and rollouts one at a time.

Any folder of ours, of TRL or verl through our adapters, or of `poise import` is read. What a folder
lacks is None or empty here, and the finding that needs it says so. Rollouts are streamed file by
file, so memory does not grow with the length of a run; nothing is ever written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from counterpoise.config import RunConfig
from counterpoise.config.evaluation_settings import group_by_setting
from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import explain_foreign_run
from counterpoise.report.graded_rewards import has_graded_rewards
from counterpoise.report.not_measured import took_no_step
from counterpoise.report.pages.imported import read_imported
from counterpoise.statistics.prompt_intervals import IntervalEstimate
from counterpoise.store.evaluation_records import reward_estimate, success_estimate
from counterpoise.store.folder import (
    REPLAY,
    RunFolder,
    is_imported,
    is_run,
)
from counterpoise.store.logs import iterate_log
from counterpoise.store.stored_rollouts import DamagedLines, RolloutLine, iterate_rollouts

Record = dict[str, Any]
Value = TypeVar("Value")
Progress = Callable[[str, int, int], None]  # (what, files read, files in all)


@dataclass(eq=False)
class RunFiles:
    """A run folder as it is stored.

    Example:
        run = RunFiles.read(Path("out/demo"))
        run.metric("entropy")        [(1, 0.0916), (2, 0.0809), ...]
    """

    path: Path
    source: str  # the trainer: "Counterpoise", "TRL", "verl", ...
    config: RunConfig | None  # None: the options are not known
    metrics: list[Record]
    evaluations: list[Record]
    benchmark_files: Sequence[Path] = ()
    progress: Progress = field(default=lambda what, done, total: None)
    unreadable_by_iteration: dict[int, int] = field(default_factory=dict)  # lines of rollouts/
    has_sampled_tokens: bool = True  # False: tokens are those of the texts, encoded again

    @classmethod
    def read(
        cls,
        path: Path,
        benchmark_files: Sequence[Path] = (),
        progress: Progress = lambda what, done, total: None,
    ) -> Self:
        """Read the logs; rollouts and plans are read when a finding asks for them."""
        if not path.is_dir():
            problem = "is a file" if path.exists() else "does not exist"
            raise PoiseError(f"{path} {problem}: name the folder of a run")
        if is_imported(path):
            data, origin = read_imported(path)
            return cls(
                path,
                origin.source,
                # An adapter records the few options it knows; an import knows none.
                data.config if data.plans else None,
                data.metrics,
                data.evaluations,
                benchmark_files,
                progress,
                has_sampled_tokens=not origin.has_encoded_tokens,
            )
        try:
            folder = RunFolder.open(path)
        except PoiseError as fault:
            raise PoiseError(explain_foreign_run(path, "audit") or str(fault)) from fault
        config = folder.read_config() if is_run(path) else None
        metrics, evaluations = (folder.read(log) for log in ("metrics", "evaluations"))
        return cls(path, "Counterpoise", config, metrics, evaluations, benchmark_files, progress)

    # -- logs --------------------------------------------------------------------------------

    def metric(self, name: str) -> list[tuple[int, float]]:
        """(iteration, value) wherever metrics.jsonl has a finite number of this name."""
        values = ((record["iteration"], record.get(name)) for record in self.metrics)
        return [
            (iteration, float(value))
            for iteration, value in values
            if isinstance(value, int | float) and np.isfinite(value)
        ]

    def total(self, name: str) -> float:
        return sum(value for _, value in self.metric(name))

    @property
    def iterations(self) -> int:
        return len(self.metrics)

    @cached_property
    def took_no_step(self) -> bool:
        """Whether optimizer steps were counted, and there were none: no update can be judged."""
        return took_no_step(self.metrics)

    @property
    def is_replay(self) -> bool:
        """Whether these are virtual updates of a model by rollouts that another run sampled."""
        return (self.path / REPLAY).is_file()

    @cached_property
    def is_graded(self) -> bool:
        """Whether rewards other than 0 and 1 occurred: then mean rewards are judged."""
        return has_graded_rewards(self.metrics, self.evaluations)

    @cached_property
    def heldout(self) -> list[tuple[int, IntervalEstimate]]:
        """(iteration, success) at the first evaluation setting.

        If rewards are graded it is the mean reward, where the evaluation has one: see
        `heldout_has_rewards`.
        """
        records = next(iter(group_by_setting(self.evaluations).values()), [])
        estimate = reward_estimate if self.is_graded else success_estimate
        return sorted(
            ((int(record["iteration"]), estimate(record)) for record in records),
            key=lambda pair: pair[0],
        )

    @property
    def heldout_has_rewards(self) -> bool:
        """Whether every evaluation stored a mean reward; oldest versions stored the success."""
        return all(record.get("reward") is not None for record in self.evaluations)

    @property
    def foreign_options_hint(self) -> str:
        """Warns that a remedy names our options, where another trainer made the run; else ""."""
        return "" if self.source == "Counterpoise" else f" ({self.source} has options of its own)"

    # -- plans -------------------------------------------------------------------------------

    def iterate_plans(self) -> Iterator[Record]:
        """Plans, one at a time; without rows and steps where the run had store.report = false."""
        yield from iterate_log(self.path / "plans.jsonl", "plans")

    @property
    def has_plans(self) -> bool:
        return (self.path / "plans.jsonl").is_file()

    @property
    def has_plans_without_buffer(self) -> bool:
        """Whether these are another trainer's plans, in which a rollout is trained or left out.

        Not those of RB inside another trainer, imported again: what waits there is in no plan yet.
        """
        has_buffer = self.config is not None and self.config.balance.tau > 0
        is_foreign = self.source != "Counterpoise" and not has_buffer
        return is_foreign and self.has_plans and not self.metric("buffer_positive")

    # -- rollouts ----------------------------------------------------------------------------

    @cached_property
    def rollout_files(self) -> dict[int, Path]:
        return dict(sorted(RunFolder(self.path).step_files("rollouts").items()))

    @cached_property
    def token_files(self) -> dict[int, Path]:
        return dict(sorted(RunFolder(self.path).step_files("tokens").items()))

    def iterate_rollouts(self, iteration: int) -> Iterator[RolloutLine]:
        """Rollouts of one iteration without anchors; unreadable lines are counted and left out."""
        damaged = DamagedLines()
        lines = iterate_rollouts(self.rollout_files[iteration], damaged, parse_numbers=True)
        yield from (rollout for rollout in lines if not rollout.anchor)
        self.unreadable_by_iteration[iteration] = damaged.count

    @property
    def unreadable_lines(self) -> int:
        """Lines of rollouts/ that are no rollout, in the files that were read."""
        return sum(self.unreadable_by_iteration.values())


# -- trends ----------------------------------------------------------------------------------------


def thirds(values: Sequence[Value]) -> tuple[Sequence[Value], Sequence[Value]]:
    """The first and the last third of a series, at least two values each where there are four.

    Example:
        >>> thirds([1, 2, 3, 4, 5, 6, 7])
        ([1, 2], [6, 7])
    """
    size = max(1, len(values) // 3)
    if len(values) in (4, 5):
        size = 2
    return values[:size], values[-size:]


def gap_between(after: IntervalEstimate, before: IntervalEstimate) -> IntervalEstimate:
    """The difference of two independent estimates (Zou and Donner, each side by itself)."""
    mean = after.mean - before.mean
    below = float(np.hypot(after.mean - after.low, before.high - before.mean))
    above = float(np.hypot(after.high - after.mean, before.mean - before.low))
    return IntervalEstimate(mean, mean - below, mean + above)
