"""Split a sequence into prompt, trained tokens and what an environment said between them.

    tokens   p p p | a a a | e e | a a | e          mask   0 0 0 1 1 1 0 0 1 1 0
    prompt = p p p    response = a a a a a    turns start at response tokens 0 and 3;
                                              `e e` is told before the second

Tokens after the last trained one are left out: nothing that was trained depends on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class TokenSpans:
    """The tokens of one sequence, by who wrote them.

    Example:
        split_by_mask([5, 6, 7, 8, 9], [0, 1, 0, 1, 0]).turns[1]["told"] == [7]
    """

    prompt: list[int]
    response: list[int]  # [T]
    turns: list[dict[str, Any]]  # as store/turns.py writes them; none for a single turn
    trained_positions: list[int]  # [T], of the response's tokens in the whole sequence


def split_by_mask(tokens: Sequence[int], mask: Sequence[Any]) -> TokenSpans | None:
    """The spans of a sequence whose trained tokens are marked; None if there is none."""
    positions: list[int] = np.flatnonzero(np.asarray(mask, dtype=bool)).tolist()
    if not positions:
        return None
    # A gap between trained tokens is an environment's message before another turn.
    turn_starts = [0, *(np.flatnonzero(np.diff(positions) > 1) + 1).tolist()]
    turn_ends = [*turn_starts[1:], len(positions)]
    turns = [
        {
            "start": start,
            "told": list(tokens[positions[start - 1] + 1 : positions[start]]) if start else [],
            "action": [start, end],
            "feedback": "",  # the files have it only as part of the message in "told"
        }
        for start, end in zip(turn_starts, turn_ends, strict=True)
    ]
    return TokenSpans(
        prompt=list(tokens[: positions[0]]),
        response=[tokens[position] for position in positions],
        turns=turns if len(turns) > 1 else [],
        trained_positions=positions,
    )


def is_token_list(tokens: object) -> bool:
    """Whether it is a list of token ids."""
    if not isinstance(tokens, list) or not set(map(type, tokens)) <= {int}:
        return False
    return not tokens or (min(tokens) >= 0 and max(tokens) < 2**31)


def select_numbers(values: Any, positions: Sequence[int]) -> list[float] | None:
    """The numbers at these positions; None if a value is missing or is not a number.

    Example:
        select_numbers([0.0, -0.5, None], [1]) == [-0.5]
    """
    if not isinstance(values, list) or (positions and len(values) <= positions[-1]):
        return None
    selected = [values[position] for position in positions]
    if not set(map(type, selected)) <= {int, float}:
        return None
    try:
        return list(map(float, selected))
    except OverflowError:  # an integer of hundreds of digits
        return None
