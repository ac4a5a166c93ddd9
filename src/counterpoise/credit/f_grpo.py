"""F-GRPO: A_i = (1 - p)^gamma * GRPO advantage, p the group's share of right rollouts.

The factor of focal loss: a prompt that is nearly always solved adds little, so the policy does not
concentrate further on the solutions it already finds and keeps rare ones. The group still sums to
zero. All rewards equal: every advantage is 0. arXiv:2602.06717

gamma 1: chosen here; the value of the paper's runs was not found. A reward above 0 counts as right,
so 0/1 and -1/1 rewards are treated alike. Graded rewards that are all above 0 have p = 1 and teach
nothing: such rewards need another advantage.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from counterpoise.credit.advantages import grpo

GAMMA = 1.0


def f_grpo(rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
    """A_i = (1 - p) * GRPO advantage, p the share of rewards above 0 (F-GRPO). arXiv:2602.06717

    Example:
        >>> f_grpo(np.array([1.0, 0.0, 0.0, 0.0])).round(3).tolist()
        [1.125, -0.375, -0.375, -0.375]
    """
    success_rate = float((rewards_G > 0).mean())
    return (1 - success_rate) ** GAMMA * grpo(rewards_G)
