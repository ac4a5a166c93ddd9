"""Combine several rewards of a rollout into one advantage: which rewards, and their weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError
from counterpoise.types import Group
from counterpoise.variants import ADVANTAGES, MIXTURES
from counterpoise.verify.extra_rewards import extra_reward_weights


@dataclass(frozen=True, slots=True)
class RewardMixture:
    """The verifier's reward with weight 1, and extra rewards with weights of their own.

    Example:
        RewardMixture("decoupled", {"equations": 0.5}).advantages(group, "grpo")
    """

    name: str = "sum"
    weights: Mapping[str, float] = field(default_factory=dict)

    def advantages(
        self, group: Group, advantage_name: str, penalty_G: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        """Advantages of the group's rollouts by the named advantage function.

        `penalty_G` is subtracted from the verifier's reward.
        A rollout without any reward (nan) has advantage 0 and takes no part in the group's mean.
        """
        rewards_G = group.rewards_G if penalty_G is None else group.rewards_G - penalty_G
        compute_advantages = _skip_unscored(ADVANTAGES.load(advantage_name))
        if not self.weights:
            return compute_advantages(rewards_G)
        rewards_KG = np.stack(
            [rewards_G, *(extra_rewards(group, reward_name) for reward_name in self.weights)]
        )
        weights_K = np.array([1.0, *self.weights.values()])
        is_scored_G = ~np.isnan(rewards_KG).all(axis=0)
        advantages_G = np.zeros(rewards_KG.shape[1])
        if is_scored_G.any():
            advantages_G[is_scored_G] = MIXTURES.load(self.name)(
                compute_advantages, rewards_KG[:, is_scored_G], weights_K
            )
        return advantages_G


def _skip_unscored(
    compute_advantages: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """The advantage function over the rewards that are not nan; 0 for the others."""

    def advantages_of_scored(rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
        is_scored_G = ~np.isnan(rewards_G)
        if is_scored_G.all():
            return compute_advantages(rewards_G)
        advantages_G = np.zeros_like(rewards_G)
        if is_scored_G.any():
            advantages_G[is_scored_G] = compute_advantages(rewards_G[is_scored_G])
        return advantages_G

    return advantages_of_scored


def configured_mixture(config: RunConfig) -> RewardMixture:
    """The mixture that a run's options describe."""
    return RewardMixture(config.credit.mixture, extra_reward_weights(config.verify.also))


def extra_rewards(group: Group, reward_name: str) -> NDArray[np.float64]:
    """Values of the extra reward `reward_name` [G], in the order of the rollouts."""
    if any(reward_name not in rollout.extra_rewards for rollout in group.rollouts):
        raise PoiseError(
            f"group '{group.key}' has no reward '{reward_name}': sample it again, or remove the "
            "reward from verify.also"
        )
    return np.array(
        [rollout.extra_rewards[reward_name] for rollout in group.rollouts], dtype=np.float64
    )


Array = NDArray[np.float64]
EPSILON = np.finfo(np.float64).eps


def mix_by_sum(
    compute_advantages: Callable[[Array], Array], rewards_KG: Array, weights_K: Array
) -> Array:
    """A = credit(sum_k weight_k r_k): the rewards of a rollout are added, then normalised together.

    This is ordinary reward shaping (DAPO's overlong punishment, arXiv:2503.14476). Within a group
    the reward that varies most dominates. A reward that does not apply to a rollout (nan) adds
    nothing, as in TRL. Rewards that cancel sum to exactly 0 rather than to a rounding error: 0.3 -
    3 * 0.1 is no signal.
    """
    applicable_KG = np.nan_to_num(rewards_KG)
    total_G = weights_K @ applicable_KG
    rounding_G = len(weights_K) * EPSILON * (np.abs(weights_K) @ np.abs(applicable_KG))
    return compute_advantages(np.where(np.abs(total_G) <= rounding_G, 0.0, total_G))


# A mixture below this share of its components' size counts as cancelled: +1 and -1 do not cancel
# exactly, because every std has an epsilon added to it.
CANCELLED_SHARE = 1e-4


def mix_decoupled(
    compute_advantages: Callable[[Array], Array], rewards_KG: Array, weights_K: Array
) -> Array:
    """A = sum_k weight_k credit(r_k) / sum_k weight_k: normalise each reward, then mix.

    CRPO's decoupled group normalisation, arXiv:2605.25511: A = 0.5 GN(task) + 0.5 GN(style), with
    GN the z-score of `credit.name=grpo`; that is one extra reward with weight 1. A reward's scale
    and offset drop out, so no reward drowns another. One that is equal in the whole group adds
    nothing, but its weight still counts in the denominator: with two rewards of weight 1, the
    advantages of the other are halved. If the advantages of each reward sum to zero in a group, so
    does the mixture. A rollout whose components cancel has no signal: exactly 0 rather than a
    rounding error (chosen here).

    Two parts of CRPO are not here. It first standardises style rewards by running statistics of
    their role; all rollouts of a group have one role, so the z-score would undo that. Its factor
    (1 - 0.02 H_b) of a rollout is `credit.weights=crpo`.
    """
    advantages_KG = np.stack([compute_advantages(rewards_G) for rewards_G in rewards_KG])
    mixture_G: Array = weights_K @ advantages_KG / weights_K.sum()
    size_G = weights_K @ np.abs(advantages_KG) / weights_K.sum()
    return np.where(np.abs(mixture_G) < CANCELLED_SHARE * size_G, 0.0, mixture_G)
