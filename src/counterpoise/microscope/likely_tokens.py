"""The likeliest tokens at a position, before an optimizer step and after it.

    pi(v | context) at the sampling temperature, for the tokens v of largest pi before the step

The same tokens are read again after the step: where one of them became less likely, the table shows
which of the others gained. Distributions are computed in chunks: no tokens x vocabulary matrix is
kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from counterpoise.microscope.learning_tax import log_distributions
from counterpoise.model.head import CHUNK_ELEMENTS
from counterpoise.model.residuals import wide

TOP_TOKENS = 8  # stored for a watched token
CHUNK_ELEMENTS_CUDA = 1 << 25  # of one chunk in float32, 128 MB: little is free during an update


@dataclass(frozen=True, slots=True, eq=False)
class LikelyTokens:
    """For every watched token, the tokens that were likeliest in its place, likeliest first."""

    tokens: Tensor  # [n, top], ids
    logprobs: Tensor  # [n, top], before the step
    new_logprobs: Tensor  # [n, top], after it; nan if the policy was not read again

    def cpu(self) -> LikelyTokens:
        return LikelyTokens(self.tokens.cpu(), self.logprobs.cpu(), self.new_logprobs.cpu())


@torch.no_grad()
def likeliest_tokens(
    hidden_nD: Tensor, W: Tensor, temperature: float, softcap: float = 0.0, top: int = TOP_TOKENS
) -> LikelyTokens:
    """The `top` likeliest tokens at each of the hidden states."""
    best = [
        chunk_nV.topk(min(top, len(W)), dim=1)
        for chunk_nV in _distributions(hidden_nD, W, temperature, softcap)
    ]
    logprobs = torch.cat([chunk.values for chunk in best])
    return LikelyTokens(
        torch.cat([chunk.indices for chunk in best]), logprobs, torch.full_like(logprobs, torch.nan)
    )


@torch.no_grad()
def read_again(
    likely: LikelyTokens, hidden_nD: Tensor, W: Tensor, temperature: float, softcap: float = 0.0
) -> LikelyTokens:
    """The same tokens with their log-probabilities under the weights after the step."""
    start, new_logprobs = 0, []
    for chunk_nV in _distributions(hidden_nD, W, temperature, softcap):
        end = start + len(chunk_nV)
        new_logprobs.append(chunk_nV.gather(1, likely.tokens[start:end]))
        start = end
    return replace(likely, new_logprobs=torch.cat(new_logprobs))


def _distributions(
    hidden_nD: Tensor, W: Tensor, temperature: float, softcap: float
) -> Iterator[Tensor]:
    """Log-distributions [chunk, V], chunk after chunk."""
    elements = CHUNK_ELEMENTS_CUDA if hidden_nD.is_cuda else CHUNK_ELEMENTS
    wide_W = wide(W)
    for chunk_nD in hidden_nD.split(max(1, elements // len(W))):
        yield log_distributions(wide(chunk_nD) / temperature, wide_W, softcap / temperature)
