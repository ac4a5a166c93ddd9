"""The sign by which reward balance counts a row: +1, -1, or 0 for a row that it leaves out.

    advantage    the sign of A: rows without signal (A = 0) are left out of batches
    reward       +1 (right) if r > 0, else -1 (wrong): groups whose rewards are all equal count too
                 and their rows stay in the batch, although A = 0 gives them no gradient

The paper balances "positive and negative rollouts", which can be read either way. Where signs are
those of rewards, advantages stay as they were computed: a group that loses rows is not re-centred.
A rollout whose reward does not apply (nan) is neither right nor wrong: its sign is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from counterpoise.errors import PoiseError
from counterpoise.types import Row

SignRule = Callable[[Row], int]


def advantage_sign(row: Row) -> int:
    """The advantage's sign; rows without signal are left out."""
    return row.sign


def reward_sign(row: Row) -> int:
    """Right or wrong; rows without signal stay."""
    if row.rollout is None:
        raise PoiseError(
            f"row {row.index} of group '{row.group}' carries no reward: count its sign by "
            "advantage (balance.sign=advantage)"
        )
    if math.isnan(row.rollout.reward):
        return 0
    return 1 if row.rollout.reward > 0 else -1
