"""A_i = r_i - mean of the others' rewards = G / (G - 1) * (r_i - mean(r)).

Leave-one-out keeps the baseline independent of the rollout it judges, so the gradient is unbiased.
All rewards equal, or a group of one: every advantage is 0. arXiv:2402.14740
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from counterpoise.credit import dr_grpo


def advantages(rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
    size = len(rewards_G)
    if size < 2:
        return np.zeros_like(rewards_G)
    return dr_grpo.advantages(rewards_G) * (size / (size - 1))
