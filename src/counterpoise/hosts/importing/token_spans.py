"""Split a sequence into prompt, trained tokens and what an environment said between them.

    tokens   p p p | a a a | e e | a a | e          mask   0 0 0 1 1 1 0 0 1 1 0
    prompt = p p p    response = a a a a a    turns start at response tokens 0 and 3;
                                              `e e` is the observation before the second

Tokens after the last trained one are left out: nothing that was trained depends on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from counterpoise.hosts.turns import split_turns
from counterpoise.types import Turn


@dataclass(frozen=True, slots=True)
class TokenSpans:
    """The tokens of one sequence, by who wrote them.

    Example:
        split_by_mask([5, 6, 7, 8, 9], [0, 1, 0, 1, 0]).turns[1].observation == [7]
    """

    prompt: list[int]
    response: list[int]  # [T]
    turns: tuple[Turn, ...]  # none for a single turn
    trained_positions: list[int]  # [T], of the response's tokens in the whole sequence


def split_by_mask(tokens: Sequence[int], mask: Sequence[Any]) -> TokenSpans | None:
    """The spans of a sequence of token ids whose trained ones are marked; None if there is none."""
    is_trained_N = np.asarray(mask, dtype=bool)
    positions: list[int] = np.flatnonzero(is_trained_N).tolist()
    if not positions:
        return None
    start, end = positions[0], positions[-1] + 1
    return TokenSpans(
        prompt=list(tokens[:start]),
        response=[tokens[position] for position in positions],
        turns=split_turns(np.asarray(tokens[start:end]), is_trained_N[start:end]),
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
