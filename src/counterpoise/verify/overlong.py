"""DAPO's soft overlong punishment: the last tokens before the limit cost more and more.

    r = 0                           L <= Lmax - Lc
    r = (Lmax - Lc - L) / Lc        Lmax - Lc < L <= Lmax, where a response is cut

L counts the response's tokens, its end token included; Lmax is sample.max_new_tokens, Lc is
verify.overlong_tokens. A response that was cut has r = -1 whatever it had in mind.
arXiv:2503.14476; there Lc is 4,096 of 20,480, hence the default of a fifth.
"""

from __future__ import annotations

from counterpoise.config import RunConfig
from counterpoise.types import Prompt, Response


def reward(prompt: Prompt, response: Response, config: RunConfig) -> float:
    limit = config.sample.max_new_tokens
    return overlong_punishment(
        len(response.tokens), limit, config.verify.overlong_tokens or limit / 5
    )


def overlong_punishment(length: int, limit: int, soft_tokens: float) -> float:
    """
    Example:
        >>> [punishment(length, 100, 20) for length in (80, 85, 100)]
        [0.0, -0.25, -1.0]
    """
    return -min(1.0, max(0.0, (length - (limit - soft_tokens)) / soft_tokens)) + 0.0  # no -0.0
