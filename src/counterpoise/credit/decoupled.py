"""A = sum_k share_k credit(r_k) / sum_k share_k: every reward normalised in its group, then mixed.

CRPO's decoupled group normalisation, arXiv:2605.25511: A = 0.5 GN(task) + 0.5 GN(style), GN the
z-score of `credit.name=grpo`, which is one further reward with the share 1. A reward's scale and
offset drop out, so none drowns another, and one that is equal in the whole group leaves the others
as they are. With credits that sum to zero in a group the mixture does too. A rollout whose parts
cancel has no signal: exactly 0, not the rounding that is left of them (chosen here).

Left out of CRPO: style rewards are first standardised by running statistics of their role, which
the z-score of a group, all of one role, undoes; and the factor (1 - 0.02 H_b) of a rollout.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

NOTHING = 1e-4  # of its parts: what the epsilons beside the stds leave of +1 and -1
Array = NDArray[np.float64]


def mixed(credit: Callable[[Array], Array], rewards_KG: Array, shares_K: Array) -> Array:
    advantages_KG = np.stack([credit(rewards_G) for rewards_G in rewards_KG])
    mixture: Array = shares_K @ advantages_KG / shares_K.sum()
    parts_G = shares_K @ np.abs(advantages_KG) / shares_K.sum()
    return np.where(np.abs(mixture) < NOTHING * parts_G, 0.0, mixture)
