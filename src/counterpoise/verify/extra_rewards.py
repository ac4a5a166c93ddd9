"""Rewards besides the verifier's: `verify.also = ["overlong", "equations=0.5", "mine.py:brief"]`.

Each entry names a function (prompt, response, config) -> number in `EXTRA_REWARDS`, or a user's
function, which is called in the same way as one that replaces the verifier (plugin_reward.py). The
number after the name is the weight of that reward, 1 by default; the verifier's weight is always 1.
`credit.mixture` decides how several rewards are combined. Success rates and held-out evaluations
count the verifier's reward only. A user's function may time out or crash on a response
(time_limited_verifier.py): that is added to the verifier's counts. What it logs is stored with
what the verifier logs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from inspect import Parameter
from typing import NamedTuple

from counterpoise.config import RunConfig, VerifyConfig
from counterpoise.errors import PoiseError, unknown_name
from counterpoise.plugins import display_name, is_plugin, load_plugin, parse_plugin_name
from counterpoise.types import Prompt, Response
from counterpoise.variants import EXTRA_REWARDS
from counterpoise.verify.make_verifier import make_plugin_verifier
from counterpoise.verify.plugin_reward import read_ground_truth, read_solution
from counterpoise.verify.reward_signatures import GROUND_TRUTH, SOLUTION, reward_arguments
from counterpoise.verify.scores import NO_CONTEXT, Scores, ScoringContext, score_responses

STYLE = "style"  # the built-in reward that reads worked solutions


class ExtraScores(NamedTuple):
    """The extra rewards of the responses to some prompts."""

    rewards_PG: list[list[Mapping[str, float]]]  # by label; empty mappings without verify.also
    scores: list[Scores]  # of each entry of verify.also, with failures and logged values


class ExtraReward(NamedTuple):
    """One entry of `verify.also`.

    Example:
        ExtraReward("/home/ana/mine.py:brief@1f0c6a2b9d3e4f50", "mine.py:brief", 0.5)
    """

    name: str
    label: str  # its name in rollouts and metrics
    weight: float


def parse_extra_rewards(texts: Sequence[str]) -> list[ExtraReward]:
    """
    Example:
        >>> parse_extra_rewards(["overlong", "mine.py:brief=0.5"])[1]
        ExtraReward(name='mine.py:brief', label='mine.py:brief', weight=0.5)
    """
    extra_rewards: list[ExtraReward] = []
    for text in texts:
        name, weight = _split_weight(text)
        if name not in EXTRA_REWARDS and not is_plugin(name):
            raise PoiseError(f"verify.also: {unknown_name('reward', name, EXTRA_REWARDS.choices)}")
        label = display_name(name)
        if label in (extra.label for extra in extra_rewards):
            raise PoiseError(f"verify.also: '{label}' is listed twice: leave one out")
        try:
            parsed_weight = 1.0 if weight is None else float(weight)
        except ValueError:
            parsed_weight = math.nan  # refused below, with the same message as a negative weight
        if not 0 < parsed_weight < math.inf:
            raise PoiseError(f"verify.also: '{text}' has no weight above 0: write {label}=0.5")
        extra_rewards.append(ExtraReward(name, label, parsed_weight))
    return extra_rewards


def _split_weight(text: str) -> tuple[str, str | None]:
    """The name and the weight of an entry; the weight is None if it has none."""
    if is_plugin(text):
        # A path may contain "=", so plugins.py decides where the weight begins.
        plugin = parse_plugin_name(text)
        return plugin.name, plugin.weight
    name, equals, weight = (piece.strip() for piece in text.partition("="))
    return name, weight if equals else None


def extra_reward_weights(also: Sequence[str]) -> dict[str, float]:
    """
    Example:
        >>> extra_reward_weights(["overlong", "equations=0.5"])
        {'overlong': 1.0, 'equations': 0.5}
    """
    return {extra.label: extra.weight for extra in parse_extra_rewards(also)}


def check_extra_rewards(config: RunConfig) -> None:
    """Raise an error if verify.also has an unknown reward or an invalid weight."""
    parse_extra_rewards(config.verify.also)


def plugin_rewards(config: VerifyConfig) -> list[str]:
    """The names of the user's reward functions; one that replaces the verifier comes first."""
    names = [config.name, *(extra.name for extra in parse_extra_rewards(config.also))]
    return [name for name in names if is_plugin(name)]


def reward_columns(config: VerifyConfig) -> tuple[str, ...]:
    """The columns of the problems that the user's reward functions have parameters for."""
    columns = [
        column for name in plugin_rewards(config) for column in reward_arguments(name).columns
    ]
    return tuple(dict.fromkeys(columns))


def config_needs_answers(config: VerifyConfig) -> bool:
    """Whether the verifier, or a reward function that must get `answers`, needs reference answers.

    All built-in verifiers need them except `verifiers`, whose tasks know what they reward. No
    built-in extra reward reads an answer.
    """
    compares_answers = not is_plugin(config.name) and config.name != "verifiers"
    return compares_answers or any(map(function_needs_answers, plugin_rewards(config)))


def function_needs_answers(reward_name: str) -> bool:
    """Whether the user's reward function cannot be called without reference answers."""
    arguments = reward_arguments(reward_name)
    parameters = load_plugin(reward_name).signature.parameters
    required = {
        parameter.name for parameter in parameters.values() if parameter.default is Parameter.empty
    }
    return bool(arguments.positional) or any(
        source == "answers" and name in required for name, source in arguments.keywords.items()
    )


def verifier_needs(verifier: str) -> tuple[tuple[str, ...], bool]:
    """(columns that a verifier reads, whether it needs answers), for the problems of benchmarks."""
    config = VerifyConfig(name=verifier)
    return reward_columns(config), config_needs_answers(config)


def check_references(config: VerifyConfig, prompts: Sequence[Prompt]) -> None:
    """Raise an error if a reward must get a solution or ground truth and no problem has one.

    Single problems may lack it: a function gets an empty text then, and may return None, which
    means no reward. TRL's accuracy_reward does so.
    """
    uses_solutions = STYLE in extra_reward_weights(config.also)
    if uses_solutions and prompts and not any(prompt.solution for prompt in prompts):
        raise PoiseError(
            f"verify.also: {STYLE} compares responses with worked solutions, and no problem has "
            f"one: set task.solution_field, or leave {STYLE} out"
        )
    for reward_name in plugin_rewards(config):
        arguments = reward_arguments(reward_name)
        for parameter, source in arguments.keywords.items():
            if source not in (SOLUTION, GROUND_TRUTH) or parameter in arguments.optional:
                continue
            if prompts and not any(_has_reference(prompt, source) for prompt in prompts):
                raise PoiseError(
                    f"{display_name(reward_name)} needs '{parameter}', and no problem has a column "
                    "of that name or an answer: add the column, set task.answer_field, or give the "
                    f"parameter a default, as in {parameter}=None"
                )


def _has_reference(prompt: Prompt, source: str) -> bool:
    """Whether the column is not None ("" counts), or the problem has something to use instead."""
    if prompt.columns.get(source) is not None:
        return True
    read = read_solution if source == SOLUTION else read_ground_truth
    return read(prompt) != ""


def score_extra_rewards(
    prompts: Sequence[Prompt],
    responses_PG: Sequence[Sequence[Response]],
    config: RunConfig,
    context: ScoringContext = NO_CONTEXT,
) -> ExtraScores:
    """The extra rewards of every response.

    A reward is nan where a user's function returned None, timed out or crashed.
    """
    pairs = [
        (prompt, response)
        for prompt, responses in zip(prompts, responses_PG, strict=True)
        for response in responses
    ]
    scores_by_label = {
        extra.label: _score_pairs(extra.name, pairs, config, context)
        for extra in parse_extra_rewards(config.verify.also)
    }
    rewards_of_responses = iter(
        [
            {label: scores.rewards[i] for label, scores in scores_by_label.items()}
            for i in range(len(pairs))
        ]
    )
    return ExtraScores(
        [[next(rewards_of_responses) for _ in responses] for responses in responses_PG],
        list(scores_by_label.values()),
    )


def _score_pairs(
    reward_name: str,
    pairs: Sequence[tuple[Prompt, Response]],
    config: RunConfig,
    context: ScoringContext,
) -> Scores:
    """The scores of all (prompt, response) pairs by one reward function."""
    if not is_plugin(reward_name):
        reward_function = EXTRA_REWARDS.load(reward_name)
        return Scores(
            [float(reward_function(prompt, response, config)) for prompt, response in pairs]
        )
    # A user's function scores all responses in one call, as a verifier does.
    texts = [response.text for _, response in pairs]
    prompts = [prompt for prompt, _ in pairs]
    verifier = make_plugin_verifier(reward_name, config.verify)
    return score_responses(verifier, texts, prompts, context)
