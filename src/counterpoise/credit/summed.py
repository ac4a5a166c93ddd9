"""A = credit(sum_k share_k r_k): the rewards of a rollout are added, then normalised together.

What reward shaping means (DAPO's overlong punishment, arXiv:2503.14476). Within a group the reward
that varies most has the last word. Rewards that cancel sum to exactly 0, not to the rounding that
is left of them: 0.3 - 3 * 0.1 is no signal.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
EPSILON = np.finfo(np.float64).eps


def mixed(credit: Callable[[Array], Array], rewards_KG: Array, shares_K: Array) -> Array:
    total_G = shares_K @ rewards_KG
    rounding_G = len(shares_K) * EPSILON * (np.abs(shares_K) @ np.abs(rewards_KG))
    return credit(np.where(np.abs(total_G) <= rounding_G, 0.0, total_G))
