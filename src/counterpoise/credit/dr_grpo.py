"""A_i = r_i - mean(r). No division by std: hard and easy prompts keep their scale.

Meant with the `constant` aggregation, which does not divide by a response's length either.
A reward that is the mean but for rounding (0.2 of 0.1, 0.2 and 0.3) has no signal: its advantage is
exactly 0, as all are where all rewards are equal. arXiv:2503.20783
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def advantages(rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = rewards_G - rewards_G.mean()
    rounding = len(rewards_G) * np.finfo(np.float64).eps * np.abs(rewards_G).max()
    return np.where(np.abs(centred) <= rounding, 0.0, centred)
