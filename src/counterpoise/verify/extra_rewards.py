"""Rewards beside the verifier's: `verify.also = ["overlong", "equations=0.5", "mine.py:brief"]`.

Each is a function (prompt, response, config) -> number and a line of `EXTRA_REWARDS`, or one of the
user's, called as one in the verifier's place is (plugin_reward.py). The number behind the name is
its share, 1 where none is given; the verifier's own is always 1. What is made of several rewards is
the affair of `credit.mixture`; success and held-out judging count the verifier's alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from counterpoise.config import RunConfig, VerifyConfig
from counterpoise.errors import PoiseError, unknown
from counterpoise.plugins import is_own, read, shown
from counterpoise.types import Prompt, Response
from counterpoise.variants import EXTRA_REWARDS
from counterpoise.verify.plugin_reward import reward_arguments
from counterpoise.verify.scores import score_responses


class ExtraReward(NamedTuple):
    """Example: ExtraReward("/home/ana/mine.py:brief@1f0c6a2b9d3e4f50", "mine.py:brief", 0.5)"""

    name: str
    label: str  # under which rollouts and metrics have it
    share: float


def parse_extra_rewards(texts: Sequence[str]) -> list[ExtraReward]:
    """
    Example:
        >>> read_also(["overlong", "mine.py:brief=0.5"])[1]
        Also(name='mine.py:brief', label='mine.py:brief', share=0.5)
    """
    found: list[ExtraReward] = []
    for text in texts:
        name, share = _split_share(text)
        if name not in EXTRA_REWARDS and not is_own(name):
            raise PoiseError(f"verify.also: {unknown('reward', name, EXTRA_REWARDS.choices)}")
        label = shown(name)
        if label in (also.label for also in found):
            raise PoiseError(f"verify.also: '{label}' is there twice: leave one out")
        try:
            number = 1.0 if share is None else float(share)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise PoiseError(f"verify.also: '{text}' has no share above 0: write {label}=0.5")
        found.append(ExtraReward(name, label, number))
    return found


def _split_share(text: str) -> tuple[str, str | None]:
    """Name and share; None where there is none."""
    if is_own(text):
        asked = read(text)
        return asked.name, asked.share
    name, equals, share = (part.strip() for part in text.partition("="))
    return name, share if equals else None


def extra_reward_shares(also: Sequence[str]) -> dict[str, float]:
    """
    Example:
        >>> shares_of(["overlong", "equations=0.5"])
        {'overlong': 1.0, 'equations': 0.5}
    """
    return {one.label: one.share for one in parse_extra_rewards(also)}


def check_extra_rewards(config: RunConfig) -> None:
    """Raise where verify.also does not name rewards and their shares."""
    parse_extra_rewards(config.verify.also)


def plugin_rewards(config: VerifyConfig) -> list[str]:
    """Those of the user's, the one in the verifier's place first."""
    names = [config.name, *(also.name for also in parse_extra_rewards(config.also))]
    return [name for name in names if is_own(name)]


def reward_columns(config: VerifyConfig) -> tuple[str, ...]:
    """Of the problems, those that a reward of the user's asks for."""
    asked = [column for name in plugin_rewards(config) for column in reward_arguments(name).columns]
    return tuple(dict.fromkeys(asked))


def score_extra_rewards(
    prompts: Sequence[Prompt], responses_PG: Sequence[Sequence[Response]], config: RunConfig
) -> list[list[Mapping[str, float]]]:
    """The further rewards of every response by label; none where the run has none."""
    pairs = [
        (prompt, response)
        for prompt, responses in zip(prompts, responses_PG, strict=True)
        for response in responses
    ]
    rewards = {
        also.label: _score_pairs(also.name, pairs, config)
        for also in parse_extra_rewards(config.verify.also)
    }
    flat = iter([{label: given[i] for label, given in rewards.items()} for i in range(len(pairs))])
    return [[next(flat) for _ in responses] for responses in responses_PG]


def _score_pairs(
    name: str, pairs: Sequence[tuple[Prompt, Response]], config: RunConfig
) -> list[float]:
    found = EXTRA_REWARDS.load(name)
    if not is_own(name):
        return [float(found(prompt, response, config)) for prompt, response in pairs]
    texts = [response.text for _, response in pairs]
    return score_responses(found(), texts, [prompt for prompt, _ in pairs]).rewards
