"""What a verifier is, what it reads, and what it returns: the protocol, the context, the scores."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from counterpoise.types import Ints, Prompt


@dataclass(frozen=True, slots=True)
class Scores:
    """Rewards in the order of the responses.

    A response on which the verifier times out or crashes is counted here, and `logged` has "lost"
    for it. Its reward is 0 if the verifier is built in, and nan if it is a user's function
    (time_limited_verifier.py). A user's function may also return None for a response that it cannot
    judge: its reward is nan.

    Example:
        Scores(rewards=[1.0, 0.0, 0.0], timeouts=1, crashes=0)
    """

    rewards: list[float]
    timeouts: int = 0  # responses over the time limit; MathVerifier counts duplicate answers once
    crashes: int = 0  # responses that killed their process, counted in the same way
    graded: bool = False  # rewards are not just 0 and 1, or the function has `graded = True`
    # What the function logged: a mapping for each response, and [] if nothing was logged.
    logged: list[Mapping[str, Any]] = field(default_factory=list)
    logged_metrics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def concatenate(self, later: Scores) -> Scores:
        """These scores, followed by those of the responses after them."""
        return Scores(
            self.rewards + later.rewards,
            self.timeouts + later.timeouts,
            self.crashes + later.crashes,
            self.graded or later.graded,
            self._logged_of_each() + later._logged_of_each() if self.logged or later.logged else [],
            _join_metrics(self.logged_metrics, later.logged_metrics),
        )

    def add_failures_and_logs(self, extra: Scores) -> Scores:
        """These scores, plus timeouts, crashes and logged values of an extra reward for them.

        Both may log something under one name: a response keeps this verifier's entry.
        """
        logged: list[Mapping[str, Any]] = [
            {**extra_entries, **entries}
            for extra_entries, entries in zip(
                extra._logged_of_each(), self._logged_of_each(), strict=True
            )
        ]
        return replace(
            self,
            timeouts=self.timeouts + extra.timeouts,
            crashes=self.crashes + extra.crashes,
            logged=logged if any(logged) else [],
            logged_metrics=_join_metrics(self.logged_metrics, extra.logged_metrics),
        )

    def _logged_of_each(self) -> list[Mapping[str, Any]]:
        return self.logged or [{} for _ in self.rewards]


def _join_metrics(
    first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]
) -> dict[str, tuple[float, ...]]:
    return {name: (*first.get(name, ()), *second.get(name, ())) for name in (*first, *second)}


def are_binary(rewards: Iterable[float]) -> bool:
    """Whether all rewards are 0 or 1; nan, which is no reward, does not count."""
    return all(reward in (0.0, 1.0) or math.isnan(reward) for reward in rewards)


@dataclass(frozen=True, slots=True)
class TrainerState:
    """The progress of a run: the fields of TRL's `trainer_state` that reward functions read.

    Both count optimizer steps as if every iteration took as many as it can, so
    `global_step / max_steps` is the share of the run that is done, even while RB waits.
    """

    global_step: int
    max_steps: int


@dataclass(frozen=True, slots=True)
class ScoringContext:
    """What a reward function may read besides texts and problems; empty if unknown."""

    token_ids: Sequence[Sequence[int] | Ints] | None = None  # of each response
    trainer_state: Any = None  # TRL's own, or `TrainerState`
    data_source: str = ""  # name of the dataset, for verl's functions


NO_CONTEXT = ScoringContext()


class Verifier(Protocol):
    """Anything that scores responses; `close` releases what it started.

    Most verifiers need only the answers. A user's reward function may also read columns of the
    problems, which is why the prompts are passed.
    """

    def score(
        self, responses: Sequence[str], answers: Sequence[str], prompts: Sequence[Prompt] = ()
    ) -> Scores: ...

    def close(self) -> None: ...


class ContextVerifier(ABC):
    """A verifier that also reads the token ids of the responses and the progress of the run."""

    def score(
        self, responses: Sequence[str], answers: Sequence[str], prompts: Sequence[Prompt] = ()
    ) -> Scores:
        """Score without a context; without prompts, only responses and answers are known."""
        known_prompts = prompts or [Prompt("", "", answer) for answer in answers]
        return self.score_in_context(responses, known_prompts, NO_CONTEXT)

    @abstractmethod
    def score_in_context(
        self, responses: Sequence[str], prompts: Sequence[Prompt], context: ScoringContext
    ) -> Scores: ...


def score_responses(
    verifier: Verifier,
    responses: Sequence[str],
    prompts: Sequence[Prompt],
    context: ScoringContext = NO_CONTEXT,
) -> Scores:
    """The scores of all responses; prompts[i] is the problem that responses[i] answers."""
    if isinstance(verifier, ContextVerifier):
        return verifier.score_in_context(responses, prompts, context)
    return verifier.score(responses, [prompt.answer for prompt in prompts], prompts)
