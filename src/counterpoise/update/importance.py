"""Weights for tokens drawn by a sampler that is not quite the trainer: w = min(ratio, C).

    token       ratio_t = rho_t                    rho_t = pi_old(o_t) / mu(o_t)
    sequence    ratio_t = prod_s rho_s             one number for all tokens of a response
    off         ratio_t = 1

pi_old is the policy that sampled, as the trainer computes it; mu is the same weights as the sampler
computes them, a little off with another engine or precision. Token losses times w average over
pi_old in place of mu, as far as the cap C allows: it bounds what a single token may weigh. `token`
leaves out that the tokens before were drawn by mu as well; `sequence` does not, but its ratio
spreads with the length of the response. No gradient flows through w. Where old log-probabilities
are the sampler's own, the surrogate's ratio corrects already.

C = 2; in use are 1.5 to 5 for tokens and 2 to 10 for sequences (verl's rollout correction).
Truncated importance sampling: Ionides 2008, J. Comput. Graph. Stat. 17(2).
"""

from __future__ import annotations

import torch
from torch import Tensor


def off(log_ratio_M: Tensor, row_M: Tensor, num_rows: int) -> Tensor:
    return torch.ones_like(log_ratio_M)


def token(log_ratio_M: Tensor, row_M: Tensor, num_rows: int) -> Tensor:
    return log_ratio_M.exp()


def sequence(log_ratio_M: Tensor, row_M: Tensor, num_rows: int) -> Tensor:
    sums_R = torch.zeros(num_rows, dtype=log_ratio_M.dtype, device=log_ratio_M.device)
    return sums_R.index_add_(0, row_M, log_ratio_M).exp()[row_M]
