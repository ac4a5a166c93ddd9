"""The texts of tokens one by one, so that places in a text are places among its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.model.load import Policy
from counterpoise.types import Ints


def split_into_pieces(policy: Policy, responses: Sequence[Ints]) -> list[list[str]]:
    """The text of every token by itself; special tokens have none. Each token is read once."""
    if not responses:
        return []
    known, place_N = np.unique(np.concatenate(responses), return_inverse=True)
    texts = np.array(policy.decode_rows([[token] for token in known.tolist()]), dtype=object)
    ends = np.cumsum([len(response) for response in responses])
    return [part.tolist() for part in np.split(texts[place_N], ends[:-1])]


def token_span(pieces: Sequence[str], start: int, end: int) -> tuple[int, int]:
    """Which tokens [first, last) the characters [start, end) of their joined text are in.

    Example:
        >>> token_span(["so", " \\\\boxed{", "1", "2", "}", "."], 3, 13)
        (1, 5)
    """
    if start >= end:
        return 0, 0
    ends_T = np.cumsum([len(piece) for piece in pieces])
    first, last = np.searchsorted(ends_T, (start, end - 1), side="right").tolist()
    return first, last + 1
