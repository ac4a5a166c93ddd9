"""r_i = sum_f w_f r_if: the reward of a rollout from TRL's reward functions f.

A function may return None for a rollout, which TRL turns into NaN; it then has no part in the sum.
A rollout that no function scored has no reward: NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor


def combine_rewards(rewards_RF: Tensor, weights_F: Tensor) -> list[float]:
    """The weighted sum for each rollout."""
    # In float64, as an importer adds the columns of TRL's files.
    rewards_RF = rewards_RF.double().cpu()
    rewards_R = (rewards_RF * weights_F.double().cpu()).nansum(dim=1)
    # nansum gives 0 where no function scored the rollout: mark those as unscored again.
    rewards_R[rewards_RF.isnan().all(dim=1)] = torch.nan
    rewards: list[float] = rewards_R.tolist()
    return rewards
