"""Several rewards of a rollout -> one advantage: which rewards, with which shares, mixed how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError
from counterpoise.types import Group
from counterpoise.variants import ADVANTAGES, MIXTURES
from counterpoise.verify.further import shares_of


@dataclass(frozen=True, slots=True)
class Mixture:
    """The verifier's reward with the share 1, and further ones.

    Example:
        Mixture("decoupled", {"equations": 0.5}).advantages(group, "grpo")
    """

    name: str = "sum"
    shares: Mapping[str, float] = field(default_factory=dict)

    def advantages(self, group: Group, credit: str) -> NDArray[np.float64]:
        advantages_of = ADVANTAGES.load(credit)
        found: NDArray[np.float64]
        if not self.shares:
            found = advantages_of(group.rewards_G)
            return found
        rewards_KG = np.stack(
            [group.rewards_G, *(further_rewards(group, name) for name in self.shares)]
        )
        shares_K = np.array([1.0, *self.shares.values()])
        found = MIXTURES.load(self.name)(advantages_of, rewards_KG, shares_K)
        return found


def mixture_of(config: RunConfig) -> Mixture:
    return Mixture(config.credit.mixture, shares_of(config.verify.also))


def further_rewards(group: Group, name: str) -> NDArray[np.float64]:
    """[G], in the order of the rollouts."""
    if any(name not in rollout.further for rollout in group.rollouts):
        raise PoiseError(
            f"group '{group.key}' has no reward '{name}': sample anew, or leave it out of "
            "verify.also"
        )
    return np.array([rollout.further[name] for rollout in group.rollouts], dtype=np.float64)
