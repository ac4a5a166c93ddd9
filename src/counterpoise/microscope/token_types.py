"""How much of the pull on each token type cancels within a step.

    C_v = 1 - |sum_{k: o_k = v} A_k q_k h_k| / sum_{k: o_k = v} |A_k| q_k |h_k|,   q_k = 1 - pi_k(v)

The sum is the part of row v of the unembedding's gradient that comes from the tokens v themselves.
A_k may be any weight of the token's score, as in `coupling.py`; the monitor passes pulls. 1: the
pulls of the rollouts on v cancel; 0: they all point one way. As in eq. 10, only tokens that
the policy is unsure of (q away from 0) have weight.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class TypePulls(NamedTuple):
    """Pulls on every token type that occurs in a step, sorted by id."""

    token_ids: Tensor  # [U]
    net: Tensor  # [U], |sum A q h|
    gross: Tensor  # [U], sum |A| q |h|


def type_pulls(hidden: Tensor, tokens: Tensor, logprobs: Tensor, pulls: Tensor) -> TypePulls:
    """Pulls by token type, on the device of `hidden`.

    Pass `tokens` on the CPU: reading them from a GPU would wait for its queue.
    """
    # The tokens of a type are brought together, so that their sum has a fixed order, also on a GPU.
    token_ids, type_N, counts = torch.unique(tokens.cpu(), return_inverse=True, return_counts=True)
    token_ids, by_type, counts = (
        column.to(hidden.device, non_blocking=True)
        for column in (token_ids, type_N.argsort(stable=True), counts)
    )
    # 1 - pi by expm1: exact also where pi is nearly 1.
    weight_N = (pulls * -torch.expm1(logprobs))[by_type]
    hidden_N = hidden[by_type]
    net_pull_U, gross_pull_U = (
        torch.segment_reduce(pull_N, "sum", lengths=counts, unsafe=True)
        for pull_N in (weight_N[:, None] * hidden_N, weight_N.abs() * hidden_N.norm(dim=1))
    )
    return TypePulls(token_ids, net_pull_U.norm(dim=1), gross_pull_U)
