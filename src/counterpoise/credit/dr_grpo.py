"""A_i = r_i - mean(r). No division by std: hard and easy prompts keep their scale.

Meant with the `constant` aggregation, which does not divide by a response's length either.
All rewards equal: every advantage is 0. arXiv:2503.20783
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def advantages(rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
    if np.ptp(rewards_G) == 0:  # rounding in the mean must not make a signal of nothing
        return np.zeros_like(rewards_G)
    centred: NDArray[np.float64] = rewards_G - rewards_G.mean()
    return centred
