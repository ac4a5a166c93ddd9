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

LARGEST_REWARD = 1e100  # beyond, the square of it, and so a group's std, may not be finite
RESPONSES, ANSWERS, PROMPTS = "responses", "answers", "prompts"
ROLES = {
    "responses": RESPONSES, "response": RESPONSES, "completions": RESPONSES,
    "answers": ANSWERS, "answer": ANSWERS, "prompts": PROMPTS, "prompt": PROMPTS,
}  # fmt: skip
POSITIONAL_ROLES = (RESPONSES, ANSWERS)
KEYWORD_ONLY_NAMES = (
    "completions",
    "prompts",
    "prompt",
)  # a function with one of them comes from TRL


@dataclass(frozen=True, slots=True)
class RewardArguments:
    """What a function asks for.

    Example:
        def score(completions, tests): ...
        RewardArguments((), {"completions": "responses", "tests": "tests"})
    """

    positional: tuple[str, ...] = (
        POSITIONAL_ROLES  # what responses and answers are called; (): all by name
    )
    keywords: Mapping[str, str] = field(
        default_factory=dict
    )  # parameter -> one of MEANT, or a column

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(what for what in self.keywords.values() if what not in ROLES)


def bind_verifier(name: str) -> Callable[..., Verifier]:
    """What a table of verifiers holds: to be called with the options every verifier takes."""
    return partial(
        PluginVerifier, plugins.function(name).call, str(plugins.read(name)), reward_arguments(name)
    )


def reward_arguments(name: str) -> RewardArguments:
    """By the function's parameters; a line for one that cannot be called so."""
    function = plugins.function(name)
    parameters = list(function.signature.parameters.values())
    places = _positional_names(parameters)
    named = {
        p.name: ROLES.get(p.name, p.name)
        for p in parameters
        if p.name not in places and (p.name in ROLES or _is_required(p))
    }
    if not places and RESPONSES not in named.values():
        raise PoiseError(
            f"{function.path}: {function.name}({', '.join(function.signature.parameters)}) asks "
            "for no responses: call one of its parameters `responses`; others may be `answers`, "
            "`prompts` or columns of the problems"
        )
    function.check(*places, **named)
    return RewardArguments(places, named)


def _positional_names(parameters: Sequence[Parameter]) -> tuple[str, ...]:
    """Of two arguments whose names do not say otherwise; those of *args have ours."""
    needed = [p.name for p in parameters if _is_required(p)]
    if any(p.kind is p.KEYWORD_ONLY and _is_required(p) for p in parameters):
        return ()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        needed += POSITIONAL_ROLES[len(needed) :]
    by_name = any(name in KEYWORD_ONLY_NAMES for name in needed)
    if len(needed) != len(POSITIONAL_ROLES) or by_name:
        return ()
    meant = [ROLES.get(name, what) for name, what in zip(needed, POSITIONAL_ROLES, strict=True)]
    return tuple(needed) if meant == list(POSITIONAL_ROLES) else ()


def _is_required(parameter: Parameter) -> bool:
    starred = (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and parameter.kind not in starred


class PluginVerifier:
    """
    Example:
        >>> score = lambda responses, answers: [len(text) / 2 for text in responses]
        >>> PluginVerifier(score, "my_rewards.py:score").score(["abc", ""], ["1", "2"]).rewards
        [1.5, 0.0]
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        wanted: RewardArguments | None = None,
        timeout_seconds: float = 0,
        workers: int = 0,
    ) -> None:
        self._function, self._name, self._wanted = function, name, wanted or RewardArguments()

    def score(
        self, responses: Sequence[str], answers: Sequence[str], prompts: Sequence[Prompt] = ()
    ) -> Scores:
        def given(what: str) -> list[Any]:
            if what in POSITIONAL_ROLES:
                return list(responses if what == RESPONSES else answers)
            return [self._prompt_value(prompt, what) for prompt in prompts]

        places = POSITIONAL_ROLES if self._wanted.positional else ()
        named = {parameter: given(what) for parameter, what in self._wanted.keywords.items()}
        returned = self._function(*map(given, places), **named)
        return Scores(check_rewards(returned, len(responses), self._name))

    def _prompt_value(self, prompt: Prompt, what: str) -> Any:
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


def check_rewards(returned: Any, num_responses: int, name: str) -> list[float]:
    """One finite number for each response, or the line that says what is there instead."""
    try:
        rewards_R = np.asarray(returned, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last is torch's
        raise PoiseError(
            f"{name} returned {_shorten(returned)}: return {_expected_list(num_responses)}"
        ) from None
    if rewards_R.shape != (num_responses,):
        raise PoiseError(
            f"{name} returned {rewards_R.size} numbers for {num_responses} responses"
            if rewards_R.ndim == 1
            else f"{name} returned {_shorten(returned)}: return {_expected_list(num_responses)}"
        )
    text_R = np.array([isinstance(reward, str | bytes) for reward in returned], dtype=bool)
    (wrong,) = np.nonzero(text_R | ~(np.abs(rewards_R) <= LARGEST_REWARD))  # nan too
    if len(wrong):
        first = int(wrong[0])
        raise PoiseError(
            f"{name} returned {_shorten(returned[first])} for response {first + 1} of "
            f"{num_responses}: a reward is a finite number"
        )
    found: list[float] = rewards_R.tolist()
    return found


def _expected_list(wanted: int) -> str:
    return f"a list of {wanted} numbers, one for each response"


def _shorten(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
