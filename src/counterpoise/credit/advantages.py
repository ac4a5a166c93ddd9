"""Advantages: the rewards of one group -> one number per rollout. One function, one formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from counterpoise.credit.array_inputs import (
    ArrayLike,
    is_tensor,
    to_group_numbers,
    to_row_values,
)
from counterpoise.variants import ADVANTAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def dr_grpo(rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
    """A_i = r_i - mean(r). No division by std: hard and easy prompts keep their scale.

    Meant for the `constant` aggregation, which does not divide by a response's length either. A
    reward that differs from the mean only by rounding has no signal: in the group 0.1, 0.2, 0.3 the
    advantage of 0.2 is exactly 0, as all are when all rewards are equal. arXiv:2503.20783

    Example:
        >>> dr_grpo(np.array([1.0, 0.0, 0.0, 1.0])).tolist()
        [0.5, -0.5, -0.5, 0.5]
    """
    centred = rewards_G - rewards_G.mean()
    rounding_error = len(rewards_G) * np.finfo(np.float64).eps * np.abs(rewards_G).max()
    return np.where(np.abs(centred) <= rounding_error, 0.0, centred)


EPSILON = 1e-6


def grpo(rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
    """A_i = (r_i - mean(r)) / (std(r) + 1e-6), std with G - 1 in its denominator.

    The group is its own baseline, so the advantages of a group sum to zero: what all its rollouts
    share cancels. The unbiased std is what torch.std and verl compute; then sum(A^2) = G - 1.
    All rewards equal, or a group of one: every advantage is 0; so is that of a reward at the mean.
    arXiv:2402.03300

    Example:
        >>> grpo(np.array([1.0, 0.0, 0.0, 0.0])).round(3).tolist()
        [1.5, -0.5, -0.5, -0.5]
    """
    if len(rewards_G) < 2:
        return np.zeros_like(rewards_G)
    std: np.float64 = rewards_G.std(ddof=1)
    return dr_grpo(rewards_G) / (std + EPSILON)


def rloo(rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
    """A_i = r_i - mean of the others' rewards = G / (G - 1) * (r_i - mean(r)).

    Leave-one-out keeps the baseline independent of the rollout it judges, so the gradient is
    unbiased. All rewards equal, or a group of one: every advantage is 0. arXiv:2402.14740

    Example:
        >>> rloo(np.array([1.0, 0.0, 0.0])).round(3).tolist()
        [1.0, -0.5, -0.5]
    """
    group_size = len(rewards_G)
    if group_size < 2:
        return np.zeros_like(rewards_G)
    return dr_grpo(rewards_G) * (group_size / (group_size - 1))


def positive_only(rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
    """A_i = max(GRPO advantage, 0): the control without negative rollouts of arXiv:2605.08666.

    Its Algorithm 2. The group no longer sums to zero, so nothing that right and wrong rollouts
    share can cancel.

    Example:
        >>> positive_only(np.array([1.0, 0.0, 0.0, 0.0])).round(3).tolist()
        [1.5, 0.0, 0.0, 0.0]
    """
    return np.maximum(grpo(rewards_G), 0.0)


CORRECT_ADVANTAGE = 0.1


def w_reinforce(rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
    """A_i = 0.1 if r_i > 0, else -1: mostly unlearning failures (W-REINFORCE). arXiv:2506.01347

    L = 0.1 L_PSR + L_NSR: rewards of +0.1 and -1 without a baseline. The advantages of a group need
    not sum to zero, and a group whose rollouts all failed keeps its signal. 0.1 is the paper's
    value; it found up to 0.2 stable. A reward above 0 counts as right, so 0/1 and -1/1 rewards are
    treated alike.

    Example:
        >>> w_reinforce(np.array([1.0, 0.0])).tolist()
        [0.1, -1.0]
    """
    return np.where(rewards_G > 0, CORRECT_ADVANTAGE, -1.0)


@overload
def advantages(rewards: Tensor, groups: ArrayLike | int, method: str = "grpo") -> Tensor: ...
@overload
def advantages(
    rewards: Sequence[float] | NDArray[Any], groups: ArrayLike | int, method: str = "grpo"
) -> NDArray[np.float64]: ...
def advantages(
    rewards: ArrayLike, groups: ArrayLike | int, method: str = "grpo"
) -> NDArray[np.float64] | Tensor:
    """Compute the advantage of every rollout from the rewards of its group.

    Arguments:
        rewards   [R], one number for each rollout: a list, a numpy array or a torch tensor
        groups    [R], equal for the rollouts of a prompt; or G where every G consecutive
                  rollouts share a prompt
        method    grpo, dr_grpo, rloo, positive_only, w_reinforce, maxrl or f_grpo

    Returns [R]: a tensor like `rewards` if that is one, else a float64 array.

    Example:
        >>> advantages([1.0, 0.0, 0.0, 2.0], ["a", "b", "a", "b"], method="dr_grpo").tolist()
        [0.5, -1.0, -0.5, 1.0]
    """
    compute_advantages = ADVANTAGES.load(method)
    rewards_R = to_row_values("rewards", rewards)
    group_R = to_group_numbers(groups, len(rewards_R))
    advantages_R = np.zeros_like(rewards_R)
    for group_number in range(group_R.max(initial=-1) + 1):
        members = np.flatnonzero(group_R == group_number)
        advantages_R[members] = compute_advantages(rewards_R[members])
    if not is_tensor(rewards):
        return advantages_R
    # Advantages of integer or boolean rewards are fractions: they are returned as float32.
    float_rewards = rewards if rewards.is_floating_point() else rewards.float()
    return float_rewards.new_tensor(advantages_R.tolist())
