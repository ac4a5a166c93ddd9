"""The result of a verifier: one reward per response, and counts of failed comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from counterpoise.types import Prompt


@dataclass(frozen=True, slots=True)
class Scores:
    """Rewards in the order of the responses.

    A comparison that fails is a reward of 0 and a count here; it never raises an error.

    Example:
        Scores(rewards=[1.0, 0.0, 0.0], timeouts=1, crashes=0)
    """

    rewards: list[float]
    timeouts: int = 0  # comparisons stopped at the time limit
    crashes: int = 0  # comparisons that killed their worker

    def concatenate(self, later: Scores) -> Scores:
        """The scores of two rounds together."""
        return Scores(
            self.rewards + later.rewards,
            self.timeouts + later.timeouts,
            self.crashes + later.crashes,
        )


class Verifier(Protocol):
    """Anything that scores responses; `close` releases what it started.

    Most verifiers need only the answers. A user's reward function may also read columns of the
    problems, which is why the prompts are passed.
    """

    def score(
        self, responses: Sequence[str], answers: Sequence[str], prompts: Sequence[Prompt] = ()
    ) -> Scores: ...

    def close(self) -> None: ...


def score_responses(
    verifier: Verifier, responses: Sequence[str], prompts: Sequence[Prompt]
) -> Scores:
    """The scores of all responses; prompts[i] is the problem that responses[i] answers."""
    return verifier.score(responses, [prompt.answer for prompt in prompts], prompts)
