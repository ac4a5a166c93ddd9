"""Surrogate losses: log-probabilities, ratios and advantages -> one loss per token.

One function, one formula. Averaging over tokens is left to `aggregate.py`. All surrogates are
linear in the advantage while its sign is the same, so a row whose advantages are all zero has
neither loss nor gradient, and its forward pass is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class SurrogateInputs:
    """The trained tokens of one micro-batch, flat [M]; rows are never cut across micro-batches."""

    logprobs: Tensor  # [M], of the policy being trained; carries the gradient
    old_logprobs: Tensor  # [M], of the policy that sampled the token
    advantages: Tensor  # [M], A_i * w_{i,t}
    row: Tensor  # [M], which row of the micro-batch a token belongs to
    num_rows: int
    clip_low: float
    clip_high: float
    clip_dual: float = 0.0  # 0: no dual clip


@dataclass(frozen=True, slots=True, eq=False)
class SurrogateOutputs:
    """The loss of every token, and which tokens the clip silences."""

    loss: Tensor  # [M]
    clipped: Tensor  # [M] bool: the clip took this token's gradient away


def clip_ratios(ratio: Tensor, inputs: SurrogateInputs) -> SurrogateOutputs:
    """L_t = -min(rho_t A_t, clip(rho_t, 1 - low, 1 + high) A_t), PPO's pessimistic bound.

    Where A_t < 0 nothing bounds rho_t from above, and a single token can dominate a step. The dual
    clip bounds the loss there: L_t = min(L_t, -c A_t), c = `clip_dual` > 1 + high. arXiv:1912.09729
    """
    clipped_ratio = ratio.clamp(1 - inputs.clip_low, 1 + inputs.clip_high)
    gain, clipped_gain = ratio * inputs.advantages, clipped_ratio * inputs.advantages
    loss, clipped = -torch.minimum(gain, clipped_gain), clipped_gain < gain
    if inputs.clip_dual:
        bound = -inputs.clip_dual * inputs.advantages
        exceeds_bound = (inputs.advantages < 0) & (loss > bound)
        loss, clipped = torch.where(exceeds_bound, bound, loss), clipped | exceeds_bound
    return SurrogateOutputs(loss=loss, clipped=clipped)


def grpo(inputs: SurrogateInputs) -> SurrogateOutputs:
    """L_t = -min(rho_t A_t, clip(rho_t, 1 - low, 1 + high) A_t),  rho_t = pi(o_t) / pi_old(o_t).

    PPO's pessimistic bound on every token; `high` above `low` (clip-higher, DAPO) lets unlikely
    tokens rise further before the gradient stops. arXiv:2402.03300, arXiv:2503.14476
    """
    return clip_ratios(torch.exp(inputs.logprobs - inputs.old_logprobs), inputs)


def gspo(inputs: SurrogateInputs) -> SurrogateOutputs:
    """L_t = -min(s_t A_t, clip(s_t, 1 - low, 1 + high) A_t),  s_t = sg[s_i] pi(o_t) / sg[pi(o_t)].

    s_i = exp(mean_t log rho_t) is the length-normalised ratio of the whole response: one clip
    decision per response. Its clip range is far narrower than GRPO's: the paper takes 3e-4 and
    4e-4. arXiv:2507.18071
    """
    log_ratio = (inputs.logprobs - inputs.old_logprobs).detach()
    sums = torch.zeros(inputs.num_rows, dtype=log_ratio.dtype, device=log_ratio.device)
    counts = torch.zeros_like(sums)
    sums.index_add_(0, inputs.row, log_ratio)
    counts.index_add_(0, inputs.row, torch.ones_like(log_ratio))
    # The value is the sequence's ratio, the gradient that of the token: pi / sg[pi] is 1.
    sequence_ratio = torch.exp(sums / counts)[inputs.row]
    return clip_ratios(
        sequence_ratio * torch.exp(inputs.logprobs - inputs.logprobs.detach()), inputs
    )


def cispo(inputs: SurrogateInputs) -> SurrogateOutputs:
    """L_t = -sg[clip(rho_t, 1 - low, 1 + high)] A_t log pi(o_t).

    The weight is clipped, the gradient never: every token keeps contributing, with a bounded
    weight. arXiv:2506.13585
    """
    ratio = torch.exp(inputs.logprobs - inputs.old_logprobs).detach()
    weight = ratio.clamp(1 - inputs.clip_low, 1 + inputs.clip_high)
    never_clipped = torch.zeros_like(ratio, dtype=torch.bool)
    return SurrogateOutputs(
        loss=-weight * inputs.advantages * inputs.logprobs, clipped=never_clipped
    )


def reinforce(inputs: SurrogateInputs) -> SurrogateOutputs:
    """L_t = -A_t log pi(o_t): the surrogate of the paper's analysis (eq. 2), no ratio, no clip.

    Exact only while the policy is the one that sampled; later steps of a plan are off-policy.
    arXiv:2605.08666
    """
    never_clipped = torch.zeros_like(inputs.logprobs, dtype=torch.bool)
    return SurrogateOutputs(loss=-inputs.advantages * inputs.logprobs, clipped=never_clipped)


def unclipped(inputs: SurrogateInputs) -> SurrogateOutputs:
    """L_t = -rho_t A_t,  rho_t = pi(o_t) / pi_old(o_t): the ratio without a clip.

    Unbiased for rows of an older policy, but nothing bounds the ratio. KL-Cov uses it, with a
    penalty on a few tokens in place of the clip. arXiv:2505.22617
    """
    ratio = torch.exp(inputs.logprobs - inputs.old_logprobs)
    never_clipped = torch.zeros_like(ratio, dtype=torch.bool)
    return SurrogateOutputs(loss=-ratio * inputs.advantages, clipped=never_clipped)


def dppo(inputs: SurrogateInputs) -> SurrogateOutputs:
    """L_t = -m_t rho_t A_t,  m_t = 0 if A_t > 0 and d_t > high, or A_t < 0 and d_t < -low; else 1;
    d_t = pi(o_t) - pi_old(o_t).

    The mask compares probabilities, not their ratio: a rare token may multiply its probability and
    hardly move the policy, while a ratio of 1.2 takes a likely token from a probability of 0.80 to
    0.96. `clip_low` and `clip_high` are differences of probabilities here. pi_old is the sampler's
    own probability with `update.old_logprobs=sampler`, as in the paper. arXiv:2602.04879, the total
    variation form
    """
    ratio = torch.exp(inputs.logprobs - inputs.old_logprobs)
    difference = (inputs.logprobs.exp() - inputs.old_logprobs.exp()).detach()
    masked = torch.where(
        inputs.advantages > 0, difference > inputs.clip_high, difference < -inputs.clip_low
    ) & (inputs.advantages != 0)
    loss = torch.where(masked, 0.0, -ratio * inputs.advantages)
    return SurrogateOutputs(loss=loss, clipped=masked)


def drpo(inputs: SurrogateInputs) -> SurrogateOutputs:
    """L_t = -rho_t A_t + |A_t| pi_old(o_t) (rho_t - 1)^2 / (2 delta): DPPO's mask made smooth.

    The gradient has the factor 1 - sign(A_t) (pi - pi_old)(o_t) / delta: 1 on policy, falling to 0
    where DPPO's mask begins, and negative beyond, so a token that went too far is pulled back.
    delta is `clip_high` where A_t > 0 and `clip_low` where A_t < 0, differences of probabilities as
    in `dppo`; pi_old is the same as there. The paper has one delta; we know its value only from
    notes on the paper, which contradict each other. Nothing is clipped. arXiv:2606.09821
    """
    ratio = torch.exp(inputs.logprobs - inputs.old_logprobs)
    # Not torch.where of two floats: that is float32, whatever the log-probabilities are.
    rises = (inputs.advantages > 0).to(ratio.dtype)
    delta = inputs.clip_low + (inputs.clip_high - inputs.clip_low) * rises
    penalty = inputs.old_logprobs.exp() * (ratio - 1).square() / (2 * delta)
    loss = -ratio * inputs.advantages + inputs.advantages.abs() * penalty
    never_clipped = torch.zeros_like(ratio, dtype=torch.bool)
    return SurrogateOutputs(loss=loss, clipped=never_clipped)
