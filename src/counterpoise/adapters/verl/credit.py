"""Our advantages as verl's estimators: `algorithm.adv_estimator=poise_grpo`, and so on.

    A_{i,t} = A_i over the response's tokens, A = credit(rewards of the group), groups by uid

The reward of a rollout is the sum of its token rewards, as in verl's own estimators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.variants import ADVANTAGES

Estimator = Callable[..., tuple[Tensor, Tensor]]


def estimator(name: str) -> Estimator:
    """The function verl's registry takes for credit `name`; it returns advantages and returns."""

    def estimate(
        token_level_rewards: Tensor, response_mask: Tensor, index: Any, **_: Any
    ) -> tuple[Tensor, Tensor]:
        rewards_R = token_level_rewards.sum(dim=-1).double().tolist()
        advantages_R = torch.tensor(by_group(name, rewards_R, [str(uid) for uid in index]))
        advantages_RT = advantages_R.to(token_level_rewards)[:, None] * response_mask
        return advantages_RT, advantages_RT

    estimate.__name__ = estimate.__qualname__ = f"poise_{name}"
    return estimate


def by_group(name: str, rewards_R: Sequence[float], groups_R: Sequence[str]) -> list[float]:
    """The advantage of each row among the rows of its group.

    Example:
        >>> by_group("dr_grpo", [1.0, 0.0, 0.0, 2.0], ["a", "b", "a", "b"])
        [0.5, -1.0, -0.5, 1.0]
    """
    advantages_of = ADVANTAGES.load(name)
    members: dict[str, list[int]] = {}
    for i, group in enumerate(groups_R):
        members.setdefault(group, []).append(i)
    advantages_R = [0.0] * len(rewards_R)
    for places in members.values():
        rewards_G = np.array([rewards_R[i] for i in places], dtype=np.float64)
        for i, advantage in zip(places, advantages_of(rewards_G), strict=True):
            advantages_R[i] = float(advantage)
    return advantages_R
