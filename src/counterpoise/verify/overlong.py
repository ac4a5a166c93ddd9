"""DAPO's soft overlong punishment: responses that approach the length limit lose reward.

    r = 0                           L <= Lmax - Lc
    r = (Lmax - Lc - L) / Lc        Lmax - Lc < L <= Lmax

L is the number of response tokens including the end token, Lmax is sample.max_new_tokens and Lc is
verify.overlong_tokens. A response that was cut off at Lmax gets r = -1.
arXiv:2503.14476 uses Lc = 4,096 with Lmax = 20,480, hence the default of one fifth.
"""

from __future__ import annotations

from counterpoise.config import RunConfig
from counterpoise.types import Prompt, Response


def reward(prompt: Prompt, response: Response, config: RunConfig) -> float:
    """The punishment of a response under the limits of the run."""
    limit = config.sample.max_new_tokens
    return overlong_punishment(
        len(response.tokens), limit, config.verify.overlong_tokens or limit / 5
    )


def overlong_punishment(length: int, limit: int, soft_tokens: float) -> float:
    """
    Example:
        >>> [overlong_punishment(length, 100, 20) for length in (80, 85, 100)]
        [0.0, -0.25, -1.0]
    """
    overshoot = (length - (limit - soft_tokens)) / soft_tokens
    return -min(1.0, max(0.0, overshoot)) + 0.0  # + 0.0 turns -0.0 into 0.0
