"""KL divergence of the policy from the reference, estimated at the sampled tokens.

    d_t = log pi(o_t) - log pi_ref(o_t)

            K_t                    dK_t / d log pi      expected gradient of sum_t K_t in the loss
    k1      d_t                    1                    0: it does not pull towards pi_ref
    k2      d_t^2 / 2              d_t                  that of KL(pi || pi_ref)
    k3      exp(-d_t) - 1 + d_t    1 - exp(-d_t)        that of KL(pi_ref || pi)

    in the loss      L   = sum_i c_i sum_t (w_{i,t} L_{i,t} + kl K_{i,t})
    in the reward    r_i = reward_i - kl sum_t K_{i,t}       before advantages are computed

kl is the option `update.kl`. Expected gradients are over tokens that pi itself sampled. E[K] is
KL(pi || pi_ref) for k1 and k3; k3 is never negative and varies less. In the loss, all rows of a
step take part, also those whose advantage is 0; K has no importance weight, as in TRL and verl. In
the reward, K is taken at the policy that sampled, and no gradient flows through it: k1 is the usual
choice there.

J. Schulman, "Approximating KL divergence", 2020. k3 in the loss is GRPO's: arXiv:2402.03300.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.config import UpdateConfig
from counterpoise.credit.view import PolicyReader
from counterpoise.types import BatchPlan, Floats, Group, Row
from counterpoise.update.reference import ReferenceWeights, score_reference
from counterpoise.variants import KL_ESTIMATORS


def k1(log_ratio: Tensor) -> Tensor:
    """K = d = log pi - log pi_ref."""
    return log_ratio


def k2(log_ratio: Tensor) -> Tensor:
    """K = d^2 / 2."""
    return log_ratio.square() / 2


def k3(log_ratio: Tensor) -> Tensor:
    """K = exp(-d) - 1 + d."""
    return torch.expm1(-log_ratio) + log_ratio


def estimate_kl(
    estimator: str, logprobs: Floats, reference_logprobs: Floats
) -> NDArray[np.float64]:
    """K of every token, on the host in float64."""
    log_ratio = logprobs.astype(np.float64) - reference_logprobs.astype(np.float64)
    estimates: Tensor = KL_ESTIMATORS.load(estimator)(torch.from_numpy(log_ratio))
    return estimates.numpy()


def mean_kl(estimator: str, logprobs: Sequence[Floats], rows: Sequence[Row]) -> float | None:
    """Mean K over the tokens of the rows; None where a row has no reference log-probabilities."""
    references = [row.reference_logprobs_T for row in rows if row.reference_logprobs_T is not None]
    if not rows or len(references) < len(rows):
        return None
    estimates_N = estimate_kl(estimator, np.concatenate(logprobs), np.concatenate(references))
    return float(estimates_N.mean())


# -- in the loss -----------------------------------------------------------------------------------


def with_reference_logprobs(
    reader: PolicyReader,
    options: UpdateConfig,
    reference: ReferenceWeights | None,
    batch: Sequence[Row],
    plan: BatchPlan,
) -> list[Row]:
    """The batch with reference log-probabilities, each row scored once, before the update.

    Without a KL in the loss it stays as it is. Every step is scored in the layout of its own
    passes: while the policy is the reference, both round alike and the KL is exactly 0.
    """
    if not options.kl_in_loss:
        return list(batch)
    assert reference is not None, "no initial weights: new_state keeps them where update.kl > 0"
    scored_batch = list(batch)
    for step in plan.steps:
        indices = [i for i in step if not batch[i].masked]
        row_logprobs = score_reference(reader, reference, [batch[i] for i in indices])
        for i, logprobs_T in zip(indices, row_logprobs, strict=True):
            scored_batch[i] = replace(batch[i], reference_logprobs_T=logprobs_T)
    return scored_batch


# -- in the reward ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class RewardPenalties:
    """What the KL takes away from the rewards of an iteration's rollouts."""

    by_group: Mapping[str, NDArray[np.float64]]  # group key -> update.kl * sum_t K, per rollout [G]
    kl: float | None  # mean K over all tokens, without that factor


NO_PENALTIES = RewardPenalties({}, None)


def penalize_rewards(
    groups: Sequence[Group],
    options: UpdateConfig,
    reader: PolicyReader,
    reference: ReferenceWeights | None,
) -> RewardPenalties:
    """The penalties of all rollouts, by the policy that sampled them; none without kl_in=reward.

    Its log-probabilities are kept in `reader.scores`: the update needs them too.
    """
    if not options.kl_in_reward or not groups:
        return NO_PENALTIES
    assert reference is not None, "no initial weights: new_state keeps them where update.kl > 0"
    rows = [
        Row(group.key, 0.0, len(rollout.response_tokens), index=i, rollout=rollout)
        for group in groups
        for i, rollout in enumerate(group.rollouts)
    ]
    logprobs = reader.logprobs(rows)
    reader.keep_scores(rows, logprobs)
    estimates = [
        estimate_kl(options.kl_estimator, logprobs_T, reference_T)
        for logprobs_T, reference_T in zip(
            logprobs, score_reference(reader, reference, rows), strict=True
        )
    ]
    penalties_R = iter([options.kl * float(estimates_T.sum()) for estimates_T in estimates])
    by_group = {
        group.key: np.array([next(penalties_R) for _ in group.rollouts]) for group in groups
    }
    return RewardPenalties(by_group, float(np.concatenate(estimates).mean()))
