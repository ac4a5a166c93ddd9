"""What an environment is: who answers a response, and when it has nothing more to say.

    problem -> turn 1 -> told -> turn 2 -> told -> ... -> turn k        an episode is one rollout

The policy's turns are trained, what it was told is not. `sample/episodes.py` plays it; whether a
turn is right is the verifier's to say, so that the environment and the reward never disagree.
"""

from __future__ import annotations

from typing import Protocol

from counterpoise.types import Prompt


class Environment(Protocol):
    """Made of (turns) by the table in `task/__init__.py`."""

    turns: int  # at most

    def action(self, said: str) -> tuple[int, int]:
        """Which characters [start, end) of a turn are what is judged; (0, 0): none."""

    def feedback(self, prompt: Prompt, said: str, right: bool) -> str:
        """What there is to say of a turn; "" ends the episode."""

    def ask(self, prompt: Prompt, feedback: str) -> str:
        """What the policy is told before its next turn."""
