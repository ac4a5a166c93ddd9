"""Choose one token per row by inverting the cumulative distribution at the row's own uniform.

    token = the first v with  sum_{w <= v} p_w  >  u * sum_w p_w

Every row and position has its own uniform number, derived from the rollout's seed, so a rollout
does not depend on the other rows of its batch. The returned log-probability is that of the full
distribution at the temperature, before top-k and top-p: the update computes the same distribution,
so importance ratios stay correct.

Suffixes: R rows, V vocabulary.
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
    # u * total may round up to total itself, which no cumulative sum exceeds.
    threshold = torch.minimum(
        uniforms_R[:, None] * total, torch.nextafter(total, torch.zeros_like(total))
    )
    # Logits that are not numbers put the threshold beyond the vocabulary; the sampler recognises
    # such rows by their log-probability.
    tokens = torch.searchsorted(cumulative, threshold, right=True).clamp_(
        max=logits_RV.shape[1] - 1
    )
    return tokens.squeeze(1), logprobs_RV.gather(1, tokens).squeeze(1)


def truncate_distribution(probabilities: Tensor, top_p: float, top_k: int) -> Tensor:
    """Keep the k likeliest tokens, and of these the smallest set with top_p of their mass.

    Tokens tied with the least likely member of a set are all kept, so that the result does not
    depend on the order of the vocabulary. All others get 0; the weights are not renormalised.
    """
    if 0 < top_k < probabilities.shape[-1]:
        smallest_kept = probabilities.topk(top_k, dim=-1).values[:, -1:]
        probabilities = torch.where(probabilities >= smallest_kept, probabilities, 0.0)
    if top_p < 1.0:
        descending = probabilities.sort(dim=-1, descending=True).values
        mass_before = descending.cumsum(dim=-1) - descending
        in_nucleus = mass_before < top_p * descending.sum(dim=-1, keepdim=True)
        smallest_kept = torch.where(in_nucleus, descending, torch.inf).amin(dim=-1, keepdim=True)
        probabilities = torch.where(probabilities >= smallest_kept, probabilities, 0.0)
    return probabilities
