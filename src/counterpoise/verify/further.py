"""Rewards beside the verifier's: `verify.also = ["overlong", "equations=0.5"]`.

Each is a function (prompt, response, config) -> number and a line of `REWARDS`. The number behind
the name is its share, 1 where none is given; the verifier's own is always 1. What is made of
several rewards is the affair of `credit.mixture`; success and held-out judging count the
verifier's alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError, unknown
from counterpoise.types import Prompt, Response
from counterpoise.verify import REWARDS


def shares_of(also: Sequence[str]) -> dict[str, float]:
    """
    Example:
        >>> shares_of(["overlong", "equations=0.5"])
        {'overlong': 1.0, 'equations': 0.5}
    """
    shares: dict[str, float] = {}
    for text in also:
        name, equals, share = (part.strip() for part in text.partition("="))
        if name not in REWARDS:
            raise PoiseError(f"verify.also: {unknown('reward', name, REWARDS)}")
        if name in shares:
            raise PoiseError(f"verify.also: '{name}' is there twice: leave one out")
        try:
            shares[name] = float(share) if equals else 1.0
        except ValueError:
            shares[name] = math.nan
        if not 0 < shares[name] < math.inf:
            raise PoiseError(f"verify.also: '{text}' has no share above 0: write {name}=0.5")
    return shares


def further(
    prompts: Sequence[Prompt], responses_PG: Sequence[Sequence[Response]], config: RunConfig
) -> list[list[Mapping[str, float]]]:
    """The further rewards of every response by name; none where the run has none."""
    rewards = {name: REWARDS.load(name) for name in shares_of(config.verify.also)}
    return [
        [{name: float(f(prompt, r, config)) for name, f in rewards.items()} for r in responses]
        for prompt, responses in zip(prompts, responses_PG, strict=True)
    ]
