"""What the `load` function of every task returns: training prompts and held-out prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from counterpoise.types import Prompt


@dataclass(frozen=True, slots=True)
class TaskPrompts:
    """The prompts of a task, in a fixed order. No problem is in both sequences.

    Example:
        TaskPrompts(name="gsm8k", train=[Prompt(...), ...], heldout=[Prompt(...), ...])
    """

    name: str
    train: Sequence[Prompt]
    heldout: Sequence[Prompt]
    columns_line: str = ""  # which columns were read; "" for generated problems
    repeats: int = 0  # training prompts left out because they repeat a held-out text

    def announce(self, notify: Callable[[str], None]) -> None:
        """Say which columns were read and how many records were left out."""
        if self.columns_line:
            notify(f"{self.name}: {self.columns_line}")
        if self.repeats:
            notify(f"{self.repeats} training records repeat a held-out problem: left out")
