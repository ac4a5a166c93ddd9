"""A_i = 0.1 if r_i > 0, else -1: mostly unlearning what failed (W-REINFORCE). arXiv:2506.01347

L = 0.1 L_PSR + L_NSR: rewards of +0.1 and -1 without a baseline. The group sums to nothing in
particular, and one whose rollouts all failed keeps its signal. 0.1: the paper's; up to 0.2 it
found stable. Right is a reward above 0, so that 0/1 and -1/1 rewards are read alike.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RIGHT = 0.1


def advantages(rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(rewards_G > 0, RIGHT, -1.0)
