"""rewards = score(responses, answers): a function of the user's in the place of the verifier.

    responses   list of texts
    answers     list of reference answers, texts too: answers[i] belongs to responses[i]
    returned    as many finite numbers, in the same order: a list, or an array of one dimension

It is called in this process, with no time limit, for as many responses as are at hand: those of an
iteration or of an evaluation, or a single one (`--engine verl`). So the reward of a response must
depend on its own pair alone. `verify.timeout_seconds` and `verify.workers` mean nothing to it. What
it raises ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from counterpoise import own
from counterpoise.errors import PoiseError
from counterpoise.verify.scores import Scores, Verifier

LARGEST = 1e100  # beyond, the square of it, and so a group's std, may not be finite


def verifier(name: str) -> Callable[..., Verifier]:
    """What a table of verifiers holds: to be called with the options every verifier takes."""
    return partial(OwnVerifier, own.load(name, "responses", "answers"), str(own.read(name)))


class OwnVerifier:
    """
    Example:
        >>> score = lambda responses, answers: [len(text) / 2 for text in responses]
        >>> OwnVerifier(score, "my_rewards.py:score").score(["abc", ""], ["1", "2"]).rewards
        [1.5, 0.0]
    """

    def __init__(
        self, function: Callable[..., Any], name: str, timeout_seconds: float = 0, workers: int = 0
    ) -> None:
        self._function, self._name = function, name

    def score(self, responses: Sequence[str], answers: Sequence[str]) -> Scores:
        returned = self._function(list(responses), list(answers))
        return Scores(rewards_of(returned, len(responses), self._name))

    def close(self) -> None:
        """Nothing to release."""


def rewards_of(returned: Any, wanted: int, name: str) -> list[float]:
    """One finite number for each response, or the line that says what is there instead."""
    try:
        rewards_R = np.asarray(returned, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last is torch's
        raise PoiseError(f"{name} returned {_short(returned)}: return {_list(wanted)}") from None
    if rewards_R.shape != (wanted,):
        raise PoiseError(
            f"{name} returned {rewards_R.size} numbers for {wanted} responses"
            if rewards_R.ndim == 1
            else f"{name} returned {_short(returned)}: return {_list(wanted)}"
        )
    text_R = np.array([isinstance(reward, str | bytes) for reward in returned], dtype=bool)
    (wrong,) = np.nonzero(text_R | ~(np.abs(rewards_R) <= LARGEST))  # nan too
    if len(wrong):
        first = int(wrong[0])
        raise PoiseError(
            f"{name} returned {_short(returned[first])} for response {first + 1} of {wanted}: "
            "a reward is a finite number"
        )
    found: list[float] = rewards_R.tolist()
    return found


def _list(wanted: int) -> str:
    return f"a list of {wanted} numbers, one for each response"


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
