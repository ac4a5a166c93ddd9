"""The live progress of a run: a bar with the time left, and the numbers of the last iteration.

On a terminal the lines are drawn in place; elsewhere (a log file, CI) every iteration is a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from counterpoise.config import RunConfig
from counterpoise.config.evaluation_settings import Setting
from counterpoise.plugins import shown
from counterpoise.run.heldout import Success
from counterpoise.run.watch import Watch
from counterpoise.terminal import one_line


class ProgressWithNumbers(Progress):
    """The numbers have a line of their own: beside the bar 80 columns would not hold both."""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        for task in self.tasks:
            yield Text(task.fields["numbers"])


class LiveDisplay(Watch):
    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = ProgressWithNumbers(
            TextColumn("iteration"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("train", total=None, numbers="")
        self.numbers = ""  # of the last iteration

    def say(self, message: str) -> None:
        self.console.print(one_line(message), style="yellow", markup=False, soft_wrap=True)

    def started(self, config: RunConfig, parameters: int, iteration: int) -> None:
        tau = config.balance.tau
        about = Text.assemble(
            (one_line(config.model.name), "bold"),
            f" ({parameters / 1e6:.1f} M parameters) on {config.task.name}, "
            f"{config.sample.prompts} x {config.sample.group_size} rollouts, "
            f"{config.batch.steps} steps ",
            (one_line(shown(config.batch.composer)), "bold"),
            f", reward balance tau={tau:g}" if tau else "",
        )
        self.console.print(about, soft_wrap=True)
        self.progress.update(self.task, total=config.loop.iterations, completed=iteration)
        self.total = config.loop.iterations
        self.progress.start()

    def iterated(self, record: dict[str, Any]) -> None:
        self.numbers = numbers = summarize_iteration(record)
        self.progress.update(self.task, advance=1, numbers=numbers)
        if not self.console.is_terminal:
            line = f"{record['iteration']:>4}/{self.total}  {numbers}"
            self.console.print(line, highlight=False, soft_wrap=True)

    def judging(self, problems: int, samples: int) -> None:
        """In the place of the numbers, until it is done; a log has a line when it is."""
        told = f"judging {problems:,} held-out problems x {samples}"
        self.progress.update(self.task, numbers=told)

    def evaluated(self, iteration: int, success: Success, setting: Setting) -> None:
        self.progress.update(self.task, numbers=self.numbers)
        nucleus = f", top-p {setting.top_p:g}" if setting.top_p < 1 else ""
        told = Text.assemble(
            f"held-out success after {iteration} iterations: ",
            (str(success), "bold"),
            f" ({success.prompts} problems x {success.samples}, "
            f"temperature {setting.temperature:g}{nucleus})",
        )
        self.console.print(told, soft_wrap=True)

    def finished(self, path: Path) -> None:
        self.progress.stop()

    def __enter__(self) -> LiveDisplay:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.progress.stop()


def summarize_iteration(record: dict[str, Any]) -> str:
    """One line of numbers: success, speed, how the batch was balanced, what the update did."""
    if record["batch_rows"]:
        balance = (
            f"batch {record['batch_rows']}, {100 * (record['positive_share'] or 0):.0f} % positive"
        )
    else:
        waiting = record["buffer_positive"] + record["buffer_negative"]
        balance = f"waiting, {waiting} in the buffer"
    speed = f"{record['tokens_per_second']:,.0f} tok/s"
    return f"success {100 * record['success']:3.0f} %  {speed}  {balance}{_monitor_numbers(record)}"


def _monitor_numbers(record: dict[str, Any]) -> str:
    """What the monitor saw: tokens moved against their advantage, and how much cancelled."""
    if record["flipped"] is None or record["cancellation"] is None:
        return ""
    return (
        f", {100 * record['flipped']:.0f} % flipped, {100 * record['cancellation']:.0f} % cancelled"
    )
