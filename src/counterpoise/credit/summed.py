"""A = credit(sum_k share_k r_k): the rewards of a rollout are added, then normalised together.

What reward shaping means (DAPO's overlong punishment, arXiv:2503.14476). Within a group the reward
that varies most has the last word.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def mixed(credit: Callable[[Array], Array], rewards_KG: Array, shares_K: Array) -> Array:
    return credit(shares_K @ rewards_KG)
