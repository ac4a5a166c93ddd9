"""The turns of a response in which the tokens of tools and environments are masked out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from counterpoise.types import Turn


def split_turns(tokens_T: NDArray[np.integer], is_policy_T: NDArray[np.bool_]) -> tuple[Turn, ...]:
    """A turn for each run of the policy's own tokens; () where all tokens are its own.

    Tokens of an environment after the last turn are left out: nothing that is trained reads them.

    Example:
        >>> turns = split_turns(np.array([5, 6, 7, 8]), np.array([True, False, True, True]))
        >>> [(turn.start, turn.observation.tolist(), turn.action) for turn in turns]
        [(0, [], (0, 1)), (1, [6], (1, 3))]
    """
    if is_policy_T.all():
        return ()
    turns = []
    boundaries = np.flatnonzero(np.diff(is_policy_T)) + 1
    observation, start = np.empty(0, np.int32), 0
    for piece in np.split(np.arange(len(tokens_T)), boundaries):
        if not is_policy_T[piece[0]]:
            observation = tokens_T[piece].astype(np.int32)
            continue
        end = start + len(piece)
        turns.append(Turn(start, observation, (start, end), ""))
        observation, start = np.empty(0, np.int32), end
    return tuple(turns)
