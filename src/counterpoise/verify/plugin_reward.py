"""A user's Python function as the verifier, or as an extra reward beside it.

    def score(responses, answers, ...): return rewards

The names of its parameters decide what it receives. Each is a list with one item per response:

    responses   the texts (also `response`, or `completions` as in TRL)
    answers     the reference answers, as texts (also `answer`)
    prompts     the texts of the problems (also `prompt`)
    any other   that column of the problems' file or dataset, unconverted; None in rows without it

A function with exactly two required parameters gets responses and answers by position, whatever
they are called, unless a name contradicts that: `completions` or `prompts` among them, or `answers`
first. A parameter with a default keeps it, unless it is one of the three above. The function
returns one finite number per response, in order, as a list or a one-dimensional array.

It runs in this process without a time limit, on however many responses are at hand: those of an
iteration, of an evaluation, or a single one (`--engine verl`). So the reward of a response may
depend only on that response and its problem. `verify.timeout_seconds` and `verify.workers` do not
apply. An exception it raises ends the run.
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

# Above this size the square of a reward, and so the standard deviation of its group, may overflow.
LARGEST_REWARD = 1e100
RESPONSES, ANSWERS, PROMPTS = "responses", "answers", "prompts"
ROLES = {
    "responses": RESPONSES, "response": RESPONSES, "completions": RESPONSES,
    "answers": ANSWERS, "answer": ANSWERS, "prompts": PROMPTS, "prompt": PROMPTS,
}  # fmt: skip
POSITIONAL_ROLES = (RESPONSES, ANSWERS)
# A function with one of these parameters was written for TRL, which passes everything by keyword.
KEYWORD_ONLY_NAMES = ("completions", "prompts", "prompt")


@dataclass(frozen=True, slots=True)
class RewardArguments:
    """How a reward function is called.

    Example:
        def score(completions, tests): ...
        RewardArguments((), {"completions": "responses", "tests": "tests"})
    """

    # The function's names for responses and answers; (): all arguments are passed by keyword.
    positional: tuple[str, ...] = POSITIONAL_ROLES
    # parameter -> a value of ROLES, or a column of the problems
    keywords: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the problems that the function needs."""
        return tuple(source for source in self.keywords.values() if source not in ROLES)


def bind_verifier(name: str) -> Callable[..., Verifier]:
    """A verifier's constructor, to be called with the options that every verifier gets."""
    return partial(
        PluginVerifier,
        plugins.load_plugin(name).call,
        str(plugins.parse_plugin_name(name)),
        reward_arguments(name),
    )


def reward_arguments(name: str) -> RewardArguments:
    """How to call the function `name`, from its signature; an error if that is impossible."""
    function = plugins.load_plugin(name)
    parameters = list(function.signature.parameters.values())
    positional = _positional_names(parameters)
    keywords = {
        parameter.name: ROLES.get(parameter.name, parameter.name)
        for parameter in parameters
        if parameter.name not in positional and (parameter.name in ROLES or _is_required(parameter))
    }
    if not positional and RESPONSES not in keywords.values():
        raise PoiseError(
            f"{function.path}: {function.name}({', '.join(function.signature.parameters)}) has no "
            "parameter for the responses: call one of them `responses`; others may be `answers`, "
            "`prompts` or columns of the problems"
        )
    function.check_arguments(*positional, **keywords)
    return RewardArguments(positional, keywords)


def _positional_names(parameters: Sequence[Parameter]) -> tuple[str, ...]:
    """The names of the responses and answers parameters if both are positional; otherwise ()."""
    required = [parameter.name for parameter in parameters if _is_required(parameter)]
    if any(p.kind is p.KEYWORD_ONLY and _is_required(p) for p in parameters):
        return ()
    # *args takes whatever is missing of the two; such arguments have no name but ours.
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        required += POSITIONAL_ROLES[len(required) :]
    if len(required) != len(POSITIONAL_ROLES):
        return ()
    if any(name in KEYWORD_ONLY_NAMES for name in required):
        return ()
    # A name without a role takes the role of its position; score(answers, responses) does not fit.
    roles = [ROLES.get(name, role) for name, role in zip(required, POSITIONAL_ROLES, strict=True)]
    return tuple(required) if roles == list(POSITIONAL_ROLES) else ()


def _is_required(parameter: Parameter) -> bool:
    starred = (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and parameter.kind not in starred


class PluginVerifier:
    """Scores responses with a user's function.

    Example:
        >>> score = lambda responses, answers: [len(text) / 2 for text in responses]
        >>> PluginVerifier(score, "my_rewards.py:score").score(["abc", ""], ["1", "2"]).rewards
        [1.5, 0.0]
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        arguments: RewardArguments | None = None,
        timeout_seconds: float = 0,
        workers: int = 0,
    ) -> None:
        self._function, self._name = function, name
        self._arguments = arguments or RewardArguments()

    def score(
        self, responses: Sequence[str], answers: Sequence[str], prompts: Sequence[Prompt] = ()
    ) -> Scores:
        """Call the function once for all responses, and check what it returns."""

        def argument_values(source: str) -> list[Any]:
            if source in POSITIONAL_ROLES:
                return list(responses if source == RESPONSES else answers)
            return [self._prompt_value(prompt, source) for prompt in prompts]

        positional = POSITIONAL_ROLES if self._arguments.positional else ()
        keywords = {
            parameter: argument_values(source)
            for parameter, source in self._arguments.keywords.items()
        }
        returned = self._function(*map(argument_values, positional), **keywords)
        return Scores(check_rewards(returned, len(responses), self._name))

    def _prompt_value(self, prompt: Prompt, source: str) -> Any:
        if source == PROMPTS:
            return prompt.problem
        if source not in prompt.columns:
            raise PoiseError(
                f"{self._name} needs the column '{source}', which is not available here: stored "
                "rollouts keep only the text and the answer of a problem"
            )
        return prompt.columns[source]

    def close(self) -> None:
        """Nothing to release."""


def check_rewards(returned: Any, num_responses: int, name: str) -> list[float]:
    """The returned rewards as floats, or an error that quotes what was returned instead."""
    try:
        rewards_R = np.asarray(returned, dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # torch raises RuntimeError
        raise PoiseError(
            f"{name} returned {_shorten(returned)}: return {_expected_list(num_responses)}"
        ) from None
    if rewards_R.shape != (num_responses,):
        raise PoiseError(
            f"{name} returned {rewards_R.size} numbers for {num_responses} responses"
            if rewards_R.ndim == 1
            else f"{name} returned {_shorten(returned)}: return {_expected_list(num_responses)}"
        )
    # numpy converts the text "1.0" to a number; a reward function that returns text has a bug.
    is_text_R = np.array([isinstance(reward, str | bytes) for reward in returned], dtype=bool)
    # `not <=` instead of `>`, so that nan is refused too.
    (invalid,) = np.nonzero(is_text_R | ~(np.abs(rewards_R) <= LARGEST_REWARD))
    if len(invalid):
        index = int(invalid[0])
        raise PoiseError(
            f"{name} returned {_shorten(returned[index])} for response {index + 1} of "
            f"{num_responses}: a reward is a finite number"
        )
    rewards: list[float] = rewards_R.tolist()
    return rewards


def _expected_list(num_responses: int) -> str:
    return f"a list of {num_responses} numbers, one for each response"


def _shorten(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
