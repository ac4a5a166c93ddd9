"""Register our advantages as verl's estimators: `algorithm.adv_estimator=poise_grpo`, ...

    A_{i,t} = A_i over the response's tokens, A = credit(rewards of the group), groups by uid

The reward of a rollout is the sum of its token rewards, as in verl's own estimators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from counterpoise.credit.advantages import advantages

Estimator = Callable[..., tuple[Tensor, Tensor]]


def make_estimator(name: str) -> Estimator:
    """The function for verl's registry: it computes (advantages, returns) by credit `name`."""

    def estimate(
        token_level_rewards: Tensor, response_mask: Tensor, index: Any, **_: Any
    ) -> tuple[Tensor, Tensor]:
        rewards_R = token_level_rewards.sum(dim=-1).double().tolist()
        group_uids = [str(uid) for uid in index]
        advantages_R = torch.tensor(advantages(rewards_R, group_uids, name).tolist())
        advantages_RT = advantages_R.to(token_level_rewards)[:, None] * response_mask
        return advantages_RT, advantages_RT

    # All estimators are this one function; the name tells them apart in tracebacks.
    estimate.__name__ = estimate.__qualname__ = f"poise_{name}"
    return estimate
