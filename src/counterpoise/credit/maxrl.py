"""MaxRL: A_i = (r_i - mean(r)) / mean(r), the gradient of the log of the success rate.

Expected reward has the gradient of p, maximum likelihood that of log p, which is 1/p times as
large: rarely solved prompts count more. For rewards of 0 and 1 a right rollout gets (1 - p) / p and
a wrong one -1, so the advantages of a group sum to zero and shrink to nothing as p nears 1.
All rewards 0, or all equal: every advantage is 0. arXiv:2602.02710

The mean stands for a success rate, so it must not be negative: unequal rewards with a negative one
stop the run, because dividing by a mean near or below 0 would enlarge or reverse the update. The
formula is that of prime-rl's implementation; nothing is added to the denominator.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from counterpoise.credit.advantages import dr_grpo
from counterpoise.errors import PoiseError


def maxrl(rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
    """A_i = (r_i - mean(r)) / mean(r): rarely solved prompts count more (MaxRL). arXiv:2602.02710

    Example:
        >>> maxrl(np.array([1.0, 0.0, 0.0, 0.0])).tolist()
        [3.0, -1.0, -1.0, -1.0]
    """
    centred = dr_grpo(rewards_G)
    if not centred.any():
        return centred
    lowest_reward = float(rewards_G.min())
    if lowest_reward < 0:
        raise PoiseError(
            "maxrl divides by the mean reward and needs rewards of 0 or above, not "
            f"{lowest_reward:g}: choose another advantage, or rewards from 0 to 1"
        )
    return centred / rewards_G.mean()
