"""Live progress of a run: a bar with the remaining time, and the last iteration's numbers.

On a terminal the lines are updated in place; elsewhere (a log file, CI) every iteration prints one.
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
from counterpoise.config.evaluation_settings import EvaluationSetting
from counterpoise.errors import format_count
from counterpoise.plugins import display_name
from counterpoise.run.heldout import HeldoutSuccess
from counterpoise.run.observer import RunObserver
from counterpoise.terminal import one_line


class ProgressWithNumbers(Progress):
    """A progress bar with a line of numbers below: both do not fit into 80 columns side by side."""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        for task in self.tasks:
            yield Text(task.fields["numbers"])


class LiveDisplay(RunObserver):
    """Prints the events of a run to a console."""

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
            # Redrawing a bar would fill a log file with control characters.
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("train", total=None, numbers="")
        self.numbers = ""  # of the last iteration; shown again after an evaluation
        self.is_graded = False  # whether any reward so far was neither 0 nor 1

    def notify(self, message: str) -> None:
        self.console.print(one_line(message), style="yellow", markup=False, soft_wrap=True)

    def on_start(self, config: RunConfig, parameters: int, iteration: int) -> None:
        tau = config.balance.tau
        heading = Text.assemble(
            (one_line(config.model.name), "bold"),
            f" ({parameters / 1e6:.1f} M parameters) on {config.task.name}, "
            f"{config.sample.prompts} x {config.sample.group_size} rollouts, "
            f"{'at most ' if config.batch.rows_per_step else ''}"
            f"{format_count(config.max_steps_per_iteration, 'step')} ",
            (one_line(display_name(config.batch.composer)), "bold"),
            f", reward balance tau={tau:g}" if tau else "",
        )
        self.console.print(heading, soft_wrap=True)
        self.progress.update(self.task, total=config.loop.iterations, completed=iteration)
        self.total = config.loop.iterations
        self.progress.start()

    def on_iteration(self, record: dict[str, Any]) -> None:
        self.is_graded = self.is_graded or bool(record.get("graded"))
        self.numbers = numbers = summarize_iteration(record, graded=self.is_graded)
        self.progress.update(self.task, advance=1, numbers=numbers)
        if not self.console.is_terminal:
            line = f"{record['iteration']:>4}/{self.total}  {numbers}"
            self.console.print(line, highlight=False, soft_wrap=True)

    def on_evaluation_start(self, problems: int, samples: int, benchmark: str = "") -> None:
        """Replace the numbers while the evaluation runs; a log file only gets its result."""
        noun = f"{benchmark or 'held-out'} problem"
        activity = f"evaluating {format_count(problems, noun)} x {samples}"
        self.progress.update(self.task, numbers=activity)

    def on_evaluation(
        self,
        iteration: int,
        success: HeldoutSuccess,
        setting: EvaluationSetting,
        benchmark: str = "",
    ) -> None:
        self.progress.update(self.task, numbers=self.numbers)
        self.is_graded = self.is_graded or success.is_graded
        nucleus = f", top-p {setting.top_p:g}" if setting.top_p < 1 else ""
        message = Text.assemble(
            f"{benchmark or 'held-out'} {success.quantity} after "
            f"{format_count(iteration, 'iteration')}: ",
            (str(success), "bold"),
            f" ({format_count(success.prompts, 'problem')} x {success.samples}, "
            f"temperature {setting.temperature:g}{nucleus})",
        )
        self.console.print(message, soft_wrap=True)

    def on_finish(self, run_folder: Path) -> None:
        self.progress.stop()

    def __enter__(self) -> LiveDisplay:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.progress.stop()


def summarize_iteration(record: dict[str, Any], *, graded: bool = False) -> str:
    """One line of numbers: success, speed, composition of the batch, effect of the update.

    For graded rewards it starts with the mean reward, as a reward above 0 need not be a success.
    """
    if record["batch_rows"]:
        balance = (
            f"batch {record['batch_rows']}, {100 * (record['positive_share'] or 0):.0f} % positive"
        )
    else:
        waiting = record["buffer_positive"] + record["buffer_negative"]
        # Reward balancing keeps rows back until it has enough of both signs for a batch.
        balance = f"waiting, {waiting} in the buffer"
    speed = f"{record['tokens_per_second']:,.0f} tok/s"
    headline = (
        f"reward {record['reward']:.3f}" if graded else f"success {100 * record['success']:3.0f} %"
    )
    return f"{headline}  {speed}  {balance}{_monitor_numbers(record)}"


def _monitor_numbers(record: dict[str, Any]) -> str:
    """The monitor's shares of tokens moved against their advantage, and of cancelled gradient."""
    if record["flipped"] is None or record["cancellation"] is None:
        return ""
    return (
        f", {100 * record['flipped']:.0f} % flipped, {100 * record['cancellation']:.0f} % cancelled"
    )
