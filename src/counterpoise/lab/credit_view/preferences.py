"""Which tokens a weighting prefers: the mean weight of every frequent token id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from counterpoise.types import Floats, Row

MIN_COUNT = 20  # occurrences that a mean weight needs to be meaningful
MIN_SHARE = 0.002  # of all tokens, for the same reason


@dataclass(frozen=True, slots=True)
class TokenType:
    """A token id with its number of occurrences and their mean weight.

    Example:
        TokenType(token=412, count=103, mean=1.83)
    """

    token: int
    count: int
    mean: float  # of w


def preferred_types(
    rows: Sequence[Row], weights: Sequence[Floats], number: int = 8
) -> tuple[list[TokenType], list[TokenType]]:
    """The `number` token ids with the highest mean weight, and those with the lowest.

    Ids at the overall mean are in neither list, so uniform weights prefer none.
    """
    token_N = np.concatenate([row.content.response_tokens for row in rows])
    w_N = np.concatenate(weights).astype(np.float64)
    token_ids, type_N, count = np.unique(token_N, return_inverse=True, return_counts=True)
    mean = np.bincount(type_N, weights=w_N) / count
    mean_weight = w_N.mean()
    tolerance = 1e-6 * max(1.0, abs(mean_weight))  # differences by rounding are no preference
    # The mean weight of a rare token says little about a preference.
    frequent = np.flatnonzero(count >= max(MIN_COUNT, MIN_SHARE * len(w_N)))
    # A stable sort keeps equal means in the order of token ids.
    order = frequent[np.argsort(-mean[frequent], kind="stable")].tolist()
    types = [
        TokenType(int(token_ids[type_index]), int(count[type_index]), float(mean[type_index]))
        for type_index in order
    ]
    above = [token_type for token_type in types if token_type.mean > mean_weight + tolerance]
    below = [
        token_type for token_type in reversed(types) if token_type.mean < mean_weight - tolerance
    ]
    return above[:number], below[:number]
