"""How far a changed input moves the distribution of an answer: KL(P0 || P), and its gradient.

    P0 = softmax(W h0)    P = softmax(W h)    z = W (h - h0)
    KL = log sum_v P0(v) exp z(v) - sum_v P0(v) z(v)            dKL/dh = W^T (P - P0)

h is a hidden state, or the mean of several: then P is the softmax of the mean logits. Logits of a
small change are computed from the change of h, not as a difference of logits, so half precision
loses no more than necessary. Answers are processed in chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from counterpoise.model.residuals import chunk_bytes
from counterpoise.model.spans import span_indices
from counterpoise.model.transfer import to_device


@torch.no_grad()
def kl_divergence(before_RD: Tensor, after_RD: Tensor, unembedding_V: Tensor) -> Tensor:
    """KL(P0 || P) [R], in float64."""
    divergences = []
    for _, log_p0, logit_change in _chunks(before_RD, after_RD, unembedding_V):
        divergences.append(
            torch.logsumexp(log_p0 + logit_change, dim=-1)
            - (log_p0.exp() * logit_change).sum(dim=-1)
        )
    return torch.cat(divergences).clamp(min=0)


@torch.no_grad()
def kl_gradient(before_RD: Tensor, after_RD: Tensor, unembedding_V: Tensor) -> Tensor:
    """dKL/dh at `after_RD`: [R, D]."""
    gradient_RD = torch.empty_like(after_RD)
    for chunk, log_p0, logit_change in _chunks(before_RD, after_RD, unembedding_V):
        probability_change = torch.softmax(log_p0 + logit_change, dim=-1) - log_p0.exp()
        gradient_RD[chunk] = (probability_change.to(unembedding_V.dtype) @ unembedding_V).to(
            gradient_RD.dtype
        )
    return gradient_RD


def _chunks(before: Tensor, after: Tensor, W: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield (rows of the chunk, log P0 [n, V], z [n, V])."""
    # Four float64 arrays [n, V] exist at once.
    chunk_size = max(1, chunk_bytes(before.device) // (4 * 8 * len(W)))
    for start in range(0, len(before), chunk_size):
        chunk = slice(start, start + chunk_size)
        h0, state_change = before[chunk], after[chunk] - before[chunk]
        log_p0 = torch.log_softmax((h0.to(W.dtype) @ W.T).double(), dim=-1)
        yield chunk, log_p0, (state_change.to(W.dtype) @ W.T).double()


def mean_states(hidden_M: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
    """The mean of hidden[start:end] for every span: [R, D], in float32 at least."""
    lengths = np.array([end - start for start, end in spans])
    span_of_state_n = np.repeat(np.arange(len(spans)), lengths)
    states = hidden_M[span_indices(spans, hidden_M.device)]
    wide_states = states if states.dtype == torch.float64 else states.float()
    state_sums = wide_states.new_zeros(len(spans), wide_states.shape[1])
    state_sums = state_sums.index_add(
        0, to_device(span_of_state_n, hidden_M.device, np.int64), wide_states
    )
    return state_sums / to_device(lengths, hidden_M.device, np.float32)[:, None]
