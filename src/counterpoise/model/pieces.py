"""Texts of single tokens, to convert positions in a text into positions among its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.model.load import Policy
from counterpoise.types import Ints


def split_into_pieces(policy: Policy, responses: Sequence[Ints]) -> list[list[str]]:
    """The text of every token of every response; special tokens have empty texts."""
    if not responses:
        return []
    # Each distinct token is decoded only once.
    distinct_tokens, inverse_N = np.unique(np.concatenate(responses), return_inverse=True)
    token_texts = np.array(
        policy.decode_rows([[token] for token in distinct_tokens.tolist()]), dtype=object
    )
    response_ends = np.cumsum([len(response) for response in responses])
    return [pieces.tolist() for pieces in np.split(token_texts[inverse_N], response_ends[:-1])]


def token_span(pieces: Sequence[str], start: int, end: int) -> tuple[int, int]:
    """The range [first, last) of tokens that hold the characters [start, end) of their joined text.

    Example:
        >>> token_span(["so", " \\\\boxed{", "1", "2", "}", "."], 3, 13)
        (1, 5)
    """
    if start >= end:
        return 0, 0
    ends_T = np.cumsum([len(piece) for piece in pieces])
    first_token, last_token = np.searchsorted(ends_T, (start, end - 1), side="right").tolist()
    return first_token, last_token + 1
