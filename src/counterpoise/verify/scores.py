"""What a verifier answers: one reward per response, and what went wrong on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from counterpoise.types import Prompt


@dataclass(frozen=True, slots=True)
class Scores:
    """Rewards in the order of the responses. A fault is a reward of 0 and a count, never an error.

    Example:
        Scores(rewards=[1.0, 0.0, 0.0], timeouts=1, crashes=0)
    """

    rewards: list[float]
    timeouts: int = 0  # comparisons stopped at the time limit
    crashes: int = 0  # comparisons that killed their worker

    def concatenate(self, later: Scores) -> Scores:
        """Those of two rounds together."""
        return Scores(
            self.rewards + later.rewards,
            self.timeouts + later.timeouts,
            self.crashes + later.crashes,
        )


class Verifier(Protocol):
    """Anything that scores responses; `close` ends what it started.

    Most need the answers alone; rewards of the user's may ask for more of the problems.
    """

    def score(
        self, responses: Sequence[str], answers: Sequence[str], prompts: Sequence[Prompt] = ()
    ) -> Scores: ...

    def close(self) -> None: ...


def score_responses(
    verifier: Verifier, responses: Sequence[str], prompts: Sequence[Prompt]
) -> Scores:
    """Of every response; prompts[i] is the problem of responses[i]."""
    return verifier.score(responses, [prompt.answer for prompt in prompts], prompts)
