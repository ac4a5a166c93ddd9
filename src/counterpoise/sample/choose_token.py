"""Logits -> one token per row by inverting the cumulative distribution at the row's own uniform.

    token = the first v with  sum_{w <= v} p_w  >  u * sum_w p_w

One uniform per row and position, drawn from the rollout's seed, so a rollout does not depend on
its neighbours. The log-probability is that of the whole distribution at the temperature, before
top-k and top-p: the update sees the same distribution, so ratios stay right.
"""

from __future__ import annotations

import torch
from torch import Tensor


def choose_tokens(
    logits_RV: Tensor, uniforms_R: Tensor, temperature: float, top_p: float, top_k: int
) -> tuple[Tensor, Tensor]:
    """(tokens [R], their log-probabilities [R]) for float32 logits."""
    if temperature != 1.0:
        logits_RV = logits_RV / temperature
    logprobs_RV = torch.log_softmax(logits_RV, dim=-1)
    weights_RV = truncate_distribution(logprobs_RV.exp(), top_p, top_k)
    cumulative = weights_RV.cumsum(dim=-1)
    total = cumulative[:, -1:]
    # u * total may round up to total itself, which no cumulative sum exceeds
    height = torch.minimum(
        uniforms_R[:, None] * total, torch.nextafter(total, torch.zeros_like(total))
    )
    tokens = torch.searchsorted(cumulative, height, right=True)
    return tokens.squeeze(1), logprobs_RV.gather(1, tokens).squeeze(1)


def truncate_distribution(probabilities: Tensor, top_p: float, top_k: int) -> Tensor:
    """Zero outside the k likeliest tokens, then outside the smallest set with top_p of the rest.

    Tokens as likely as the last of a set are all in it: none is dropped for its number.
    """
    if 0 < top_k < probabilities.shape[-1]:
        least = probabilities.topk(top_k, dim=-1).values[:, -1:]
        probabilities = torch.where(probabilities >= least, probabilities, 0.0)
    if top_p < 1.0:
        ordered = probabilities.sort(dim=-1, descending=True).values
        before = ordered.cumsum(dim=-1) - ordered
        inside = before < top_p * ordered.sum(dim=-1, keepdim=True)
        least = torch.where(inside, ordered, torch.inf).amin(dim=-1, keepdim=True)
        probabilities = torch.where(probabilities >= least, probabilities, 0.0)
    return probabilities
