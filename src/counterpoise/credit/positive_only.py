"""A_i = max(GRPO advantage, 0): the paper's control without negative rollouts (Algorithm 2).

The group no longer sums to zero, so nothing that right and wrong rollouts share can cancel.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from counterpoise.credit import grpo


def advantages(rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(grpo.advantages(rewards_G), 0.0)
