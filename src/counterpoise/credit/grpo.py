"""A_i = (r_i - mean(r)) / (std(r) + 1e-6), std with G - 1 in its denominator.

The group is its own baseline, so the advantages of a group sum to zero: what all its rollouts
share cancels. The unbiased std is what torch.std and verl compute; then sum(A^2) = G - 1.
All rewards equal, or a group of one: every advantage is 0; so is that of a reward at the mean.
arXiv:2402.03300
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from counterpoise.credit import dr_grpo

EPSILON = 1e-6


def advantages(rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
    if len(rewards_G) < 2:
        return np.zeros_like(rewards_G)
    std: np.float64 = rewards_G.std(ddof=1)
    return dr_grpo.advantages(rewards_G) / (std + EPSILON)
