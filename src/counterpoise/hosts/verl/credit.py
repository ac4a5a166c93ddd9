"""Register our advantages as verl's estimators: `algorithm.adv_estimator=poise_grpo`, ...

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


def make_estimator(name: str) -> Estimator:
    """The function for verl's registry: it computes (advantages, returns) by credit `name`."""

    def estimate(
        token_level_rewards: Tensor, response_mask: Tensor, index: Any, **_: Any
    ) -> tuple[Tensor, Tensor]:
        rewards_R = token_level_rewards.sum(dim=-1).double().tolist()
        advantages_R = torch.tensor(
            advantages_by_group(name, rewards_R, [str(uid) for uid in index])
        )
        advantages_RT = advantages_R.to(token_level_rewards)[:, None] * response_mask
        return advantages_RT, advantages_RT

    # Estimators are all this one function: the name tells them apart in tracebacks.
    estimate.__name__ = estimate.__qualname__ = f"poise_{name}"
    return estimate


def advantages_by_group(
    name: str, rewards_R: Sequence[float], groups_R: Sequence[str]
) -> list[float]:
    """The advantage of each row among the rows of its group.

    Example:
        >>> advantages_by_group("dr_grpo", [1.0, 0.0, 0.0, 2.0], ["a", "b", "a", "b"])
        [0.5, -1.0, -0.5, 1.0]
    """
    compute_advantages = ADVANTAGES.load(name)
    members: dict[str, list[int]] = {}
    for i, group in enumerate(groups_R):
        members.setdefault(group, []).append(i)
    advantages_R = [0.0] * len(rewards_R)
    for rows in members.values():
        rewards_G = np.array([rewards_R[i] for i in rows], dtype=np.float64)
        for i, advantage in zip(rows, compute_advantages(rewards_G), strict=True):
            advantages_R[i] = float(advantage)
    return advantages_R
