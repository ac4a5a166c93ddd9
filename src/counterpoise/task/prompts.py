"""The record that every task returns: training prompts and held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from counterpoise.types import Prompt


@dataclass(frozen=True, slots=True)
class Task:
    """The prompts of a run, in a fixed order. No problem is in both sequences.

    Example:
        Task(name="gsm8k", train=[Prompt(...), ...], heldout=[Prompt(...), ...])
    """

    name: str
    train: Sequence[Prompt]
    heldout: Sequence[Prompt]
