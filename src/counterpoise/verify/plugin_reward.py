"""rewards = score(responses, answers, ...): a function of the user's as verifier, or beside it.

Its parameters' names say what it gets, each a list with an item for every response:

    responses   texts (also `response`, or `completions` as TRL has it)
    answers     reference answers, texts too (`answer`)
    prompts     the problems' texts (`prompt`)
    any other   that column of the problems' file or dataset, as it stands there; None where a row
                has none

Of two parameters the first is responses and the second answers, whatever they are called, unless
one is called `completions` or `prompts`, or stands in the other's place. One with a default keeps
it, unless it is one of the three. Returned are as many finite numbers, in the same order: a list,
or an array of one dimension.

It is called in this process, with no time limit, for as many responses as are at hand: those of an
iteration or of an evaluation, or a single one (`--engine verl`). So the reward of a response must
depend on it and on its problem alone. `verify.timeout_seconds` and `verify.workers` mean nothing to
it. What it raises ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import Parameter
from typing import Any

import numpy as np

from counterpoise import plugins
from counterpoise.errors import PoiseError
from counterpoise.types import Prompt
from counterpoise.verify.scores import Scores, Verifier

LARGEST = 1e100  # beyond, the square of it, and so a group's std, may not be finite
RESPONSES, ANSWERS, PROMPTS = "responses", "answers", "prompts"
MEANT = {
    "responses": RESPONSES, "response": RESPONSES, "completions": RESPONSES,
    "answers": ANSWERS, "answer": ANSWERS, "prompts": PROMPTS, "prompt": PROMPTS,
}  # fmt: skip
BY_PLACE = (RESPONSES, ANSWERS)
BY_NAME = ("completions", "prompts", "prompt")  # a function with one of them comes from TRL


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a function asks for.

    Example:
        Wanted((), {"completions": "responses", "tests": "tests"})  # def score(completions, tests)
    """

    places: tuple[str, ...] = BY_PLACE  # what responses and answers are called; (): all by name
    named: Mapping[str, str] = field(default_factory=dict)  # parameter -> one of MEANT, or a column

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(what for what in self.named.values() if what not in MEANT)


def verifier(name: str) -> Callable[..., Verifier]:
    """What a table of verifiers holds: to be called with the options every verifier takes."""
    return partial(
        OwnVerifier,
        plugins.load_plugin(name).call,
        str(plugins.parse_plugin_name(name)),
        wanted(name),
    )


def wanted(name: str) -> Wanted:
    """By the function's parameters; a line for one that cannot be called so."""
    function = plugins.load_plugin(name)
    parameters = list(function.signature.parameters.values())
    places = _places(parameters)
    named = {
        p.name: MEANT.get(p.name, p.name)
        for p in parameters
        if p.name not in places and (p.name in MEANT or _needed(p))
    }
    if not places and RESPONSES not in named.values():
        raise PoiseError(
            f"{function.path}: {function.name}({', '.join(function.signature.parameters)}) asks "
            "for no responses: call one of its parameters `responses`; others may be `answers`, "
            "`prompts` or columns of the problems"
        )
    function.check_arguments(*places, **named)
    return Wanted(places, named)


def _places(parameters: Sequence[Parameter]) -> tuple[str, ...]:
    """Of two arguments whose names do not say otherwise; those of *args have ours."""
    needed = [p.name for p in parameters if _needed(p)]
    if any(p.kind is p.KEYWORD_ONLY and _needed(p) for p in parameters):
        return ()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        needed += BY_PLACE[len(needed) :]
    by_name = any(name in BY_NAME for name in needed)
    if len(needed) != len(BY_PLACE) or by_name:
        return ()
    meant = [MEANT.get(name, what) for name, what in zip(needed, BY_PLACE, strict=True)]
    return tuple(needed) if meant == list(BY_PLACE) else ()


def _needed(parameter: Parameter) -> bool:
    starred = (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and parameter.kind not in starred


class OwnVerifier:
    """
    Example:
        >>> score = lambda responses, answers: [len(text) / 2 for text in responses]
        >>> OwnVerifier(score, "my_rewards.py:score").score(["abc", ""], ["1", "2"]).rewards
        [1.5, 0.0]
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        wanted: Wanted | None = None,
        timeout_seconds: float = 0,
        workers: int = 0,
    ) -> None:
        self._function, self._name, self._wanted = function, name, wanted or Wanted()

    def score(
        self, responses: Sequence[str], answers: Sequence[str], prompts: Sequence[Prompt] = ()
    ) -> Scores:
        def given(what: str) -> list[Any]:
            if what in BY_PLACE:
                return list(responses if what == RESPONSES else answers)
            return [self._of(prompt, what) for prompt in prompts]

        places = BY_PLACE if self._wanted.places else ()
        named = {parameter: given(what) for parameter, what in self._wanted.named.items()}
        returned = self._function(*map(given, places), **named)
        return Scores(rewards_of(returned, len(responses), self._name))

    def _of(self, prompt: Prompt, what: str) -> Any:
        if what == PROMPTS:
            return prompt.problem
        if what not in prompt.columns:
            raise PoiseError(
                f"{self._name} asks for '{what}', which these problems come without: stored "
                "rollouts keep a problem's text and its answer alone"
            )
        return prompt.columns[what]

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
