"""Which kinds of tokens a weighting prefers: the mean weight of each type that is frequent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from counterpoise.types import Floats, Row

MIN_COUNT = 20  # tokens of a type, for its mean to say something
MIN_SHARE = 0.002  # of all tokens, likewise


@dataclass(frozen=True, slots=True)
class TokenType:
    """Example: TokenType(token=412, count=103, mean=1.83)"""

    token: int
    count: int
    mean: float  # of w


def preferred_types(
    rows: Sequence[Row], weights: Sequence[Floats], number: int = 8
) -> tuple[list[TokenType], list[TokenType]]:
    """The `number` types with the highest mean weight, and those with the lowest.

    Types that are at the common mean are in neither, so uniform weights prefer none.
    """
    token_N = np.concatenate([row.content.response_tokens for row in rows])
    w_N = np.concatenate(weights).astype(np.float64)
    ids, place_N, count = np.unique(token_N, return_inverse=True, return_counts=True)
    mean = np.bincount(place_N, weights=w_N) / count
    common = w_N.mean()
    tiny = 1e-6 * max(1.0, abs(common))  # rounding is no preference
    frequent = np.flatnonzero(count >= max(MIN_COUNT, MIN_SHARE * len(w_N)))
    order = frequent[np.argsort(-mean[frequent], kind="stable")].tolist()
    made = [TokenType(int(ids[k]), int(count[k]), float(mean[k])) for k in order]
    above = [one for one in made if one.mean > common + tiny]
    below = [one for one in reversed(made) if one.mean < common - tiny]
    return above[:number], below[:number]
