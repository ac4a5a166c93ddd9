"""How much of the pull on one token type cancels within a step.

    C_v = 1 - |sum_{k: o_k = v} A_k q_k h_k| / sum_{k: o_k = v} |A_k| q_k |h_k|,   q_k = 1 - pi_k(v)

The sum is row v of the unembedding's gradient, as far as the tokens v themselves make it. 1: what
the rollouts want of v cancels; 0: they all pull one way. As in eq. 10, only tokens
the policy is unsure of (q away from 0) have weight.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class TypePulls(NamedTuple):
    """For every token type that occurs, sorted by id."""

    token_ids: Tensor  # [U]
    net: Tensor  # [U], |sum A q h|
    gross: Tensor  # [U], sum |A| q |h|


def type_pulls(hidden: Tensor, tokens: Tensor, logprobs: Tensor, advantages: Tensor) -> TypePulls:
    """On the device of `hidden`; tokens on the CPU spare a wait for it."""
    types, type_N = (
        x.to(hidden.device, non_blocking=True)
        for x in torch.unique(tokens.cpu(), return_inverse=True)
    )
    weight_N = advantages * -torch.expm1(logprobs)
    pulled = hidden.new_zeros(len(types), hidden.shape[1], dtype=weight_N.dtype)
    pulled.index_add_(0, type_N, weight_N[:, None] * hidden)
    gross = weight_N.new_zeros(len(types))
    gross.index_add_(0, type_N, weight_N.abs() * hidden.norm(dim=1))
    return TypePulls(types, pulled.norm(dim=1), gross)
