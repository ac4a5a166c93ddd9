"""Progress of an evaluation: a bar with the remaining time, or occasional lines without a terminal.

The remaining time assumes the speed so far; responses of an earlier command count as done but not
towards the speed.
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from counterpoise.lab.evaluate.result_files import ResultFile
from counterpoise.terminal import one_line

QUIET_SECONDS = 10.0  # between two lines, without a terminal


class EvaluationProgress:
    """Silent progress; the base class of displays."""

    def warn(self, message: str) -> None: ...

    def start(self, responses: int, done: int) -> None: ...

    def show_loading(self, model: str) -> None: ...

    def advance(self, result_file: ResultFile, responses: int, tokens: int) -> None: ...

    def finish(self) -> None: ...


class LiveEvaluationProgress(EvaluationProgress):
    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),  # it holds names of models
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("loading", total=None, numbers="")
        self.responses_left = self.responses_sampled = self.tokens_sampled = 0
        self.started_at = self.last_line_at = time.monotonic()

    def warn(self, message: str) -> None:
        self.console.print(one_line(message), style="yellow", markup=False)

    def start(self, responses: int, done: int) -> None:
        self.responses_left = responses - done
        if done:
            self.console.print(
                f"{done:,} of {responses:,} responses exist already", highlight=False
            )
        self.progress.update(self.task, total=responses, completed=done)
        self.progress.start()

    def show_loading(self, model: str) -> None:
        self.progress.update(self.task, description=f"loading {one_line(model)}", numbers="")
        # Loading the first model does not count towards the speed.
        self.started_at = time.monotonic() if not self.responses_sampled else self.started_at

    def advance(self, result_file: ResultFile, responses: int, tokens: int) -> None:
        self.responses_left -= responses
        self.responses_sampled += responses
        self.tokens_sampled += tokens
        header = result_file.header
        numbers = self._numbers(result_file)
        description = one_line(f"{header.model} {header.benchmark} {header.setting}")
        self.progress.update(self.task, advance=responses, description=description, numbers=numbers)
        is_complete = len(result_file.judged) == header.problems
        current_time = time.monotonic()
        # Without a terminal a line is printed per finished file, and now and then between.
        if not self.console.is_terminal and (
            is_complete or current_time - self.last_line_at > QUIET_SECONDS
        ):
            self.last_line_at = current_time
            line = f"{description}  {numbers}"
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _numbers(self, result_file: ResultFile) -> str:
        seconds = max(1e-9, time.monotonic() - self.started_at)
        rewards = [reward for problem in result_file.judged.values() for reward in problem.rewards]
        right_share = sum(reward > 0 for reward in rewards) / max(1, len(rewards))
        time_left = _clock(self.responses_left * seconds / max(1, self.responses_sampled))
        return (
            f"{len(result_file.judged)}/{result_file.header.problems} problems, "
            f"{100 * right_share:.1f} % right so far, "
            f"{self.tokens_sampled / seconds:,.0f} tok/s, {time_left} left"
        )

    def finish(self) -> None:
        self.progress.stop()


def _clock(seconds: float) -> str:
    """Write seconds as minutes and seconds, or hours, minutes and seconds.

    Example:
        >>> _clock(75), _clock(9000)
        ('1:15', '2:30:00')
    """
    minutes, seconds_part = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds_part:02d}" if hours else f"{minutes}:{seconds_part:02d}"
