"""What an evaluation tells whoever watches it: a bar with the time left, or a line now and then.

The time left is the responses still to draw at the pace so far; what an earlier call had drawn
counts as done, not as pace.
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from counterpoise.lab.evaluate.result_files import ResultFile
from counterpoise.terminal import one_line

QUIET_SECONDS = 10.0  # between lines where there is no terminal


class EvaluationProgress:
    """Silent."""

    def say(self, message: str) -> None: ...

    def started(self, responses: int, done: int) -> None: ...

    def loading(self, model: str) -> None: ...

    def advanced(self, cell: ResultFile, responses: int, tokens: int) -> None: ...

    def finished(self) -> None: ...


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
        self.total = self.left = self.drawn = self.tokens = 0
        self.start = self.said = time.monotonic()

    def say(self, message: str) -> None:
        self.console.print(one_line(message), style="yellow", markup=False)

    def started(self, responses: int, done: int) -> None:
        self.total, self.left = responses, responses - done
        if done:
            self.console.print(
                f"{done:,} of {responses:,} responses are there already", highlight=False
            )
        self.progress.update(self.task, total=responses, completed=done)
        self.progress.start()

    def loading(self, model: str) -> None:
        self.progress.update(self.task, description=f"loading {one_line(model)}", numbers="")
        self.start = time.monotonic() if not self.drawn else self.start

    def advanced(self, cell: ResultFile, responses: int, tokens: int) -> None:
        self.left -= responses
        self.drawn += responses
        self.tokens += tokens
        header = cell.header
        numbers = self._numbers(cell)
        what = one_line(f"{header.model} {header.benchmark} {header.setting}")
        self.progress.update(self.task, advance=responses, description=what, numbers=numbers)
        whole = len(cell.judged) == header.problems
        now = time.monotonic()
        if not self.console.is_terminal and (whole or now - self.said > QUIET_SECONDS):
            self.said = now
            line = f"{what}  {numbers}"
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _numbers(self, cell: ResultFile) -> str:
        seconds = max(1e-9, time.monotonic() - self.start)
        rewards = [reward for one in cell.judged.values() for reward in one.rewards]
        mean = sum(reward > 0 for reward in rewards) / max(1, len(rewards))
        left = _clock(self.left * seconds / max(1, self.drawn))
        return (
            f"{len(cell.judged)}/{cell.header.problems} problems, {100 * mean:.1f} % so far, "
            f"{self.tokens / seconds:,.0f} tok/s, {left} left"
        )

    def finished(self) -> None:
        self.progress.stop()


def _clock(seconds: float) -> str:
    """
    Example:
        >>> _clock(75), _clock(9000)
        ('1:15', '2:30:00')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
