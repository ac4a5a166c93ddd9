"""log pi(o) and the entropy of every token, without ever holding tokens x vocabulary.

    z = W h / temperature        log pi(o) = z_o - logsumexp(z)        H = logsumexp(z) - <pi, z>

The forward walks over chunks of tokens and keeps two numbers for each; the backward recomputes a
chunk's probabilities from h:  d log pi(o) / dz = e_o - pi. The entropy is reported, not trained:
no gradient flows through it. Forward mode is exact too: along (dh, dW),
d log pi(o) = (e_o - pi)^T (dW h + W dh) / temperature.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 22  # logits of one chunk: 16 MB in float32


def token_logprobs(
    hidden_N: Tensor, unembedding_V: Tensor, targets_N: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """(log-probabilities [N], entropies [N]) of `targets_N`, in float32 (float64 stays float64)."""
    logprobs, entropies = _Head.apply(hidden_N, unembedding_V, targets_N, temperature)
    return logprobs, entropies


def _chunks(n: int, vocabulary: int) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // vocabulary)
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


def _logits(hidden: Tensor, unembedding: Tensor, temperature: float) -> Tensor:
    logits = hidden @ unembedding.T
    if logits.dtype != torch.float64:
        logits = logits.float()
    return logits if temperature == 1.0 else logits / temperature


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, unembedding: Tensor, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies = [], []
        for chunk in _chunks(len(targets), unembedding.shape[0]):
            logprobs_all = torch.log_softmax(
                _logits(hidden[chunk], unembedding, temperature), dim=-1
            )
            logprobs.append(logprobs_all.gather(1, targets[chunk, None]).squeeze(1))
            entropies.append(-(logprobs_all.exp() * logprobs_all).sum(dim=-1))
        ctx.save_for_backward(hidden, unembedding, targets)
        ctx.save_for_forward(hidden, unembedding, targets)
        ctx.temperature = temperature
        entropy = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy)
        return torch.cat(logprobs), entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, unembedding, targets = ctx.saved_tensors
        wanted_h, wanted_w = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if wanted_h else None
        grad_weight = torch.zeros_like(unembedding, dtype=grad.dtype) if wanted_w else None
        for chunk in _chunks(len(targets), unembedding.shape[0]):
            error = _errors(hidden[chunk], unembedding, targets[chunk], ctx.temperature)
            error *= grad[chunk, None] / ctx.temperature
            if grad_hidden is not None:
                grad_hidden[chunk] = error.to(hidden.dtype) @ unembedding
            if grad_weight is not None:
                grad_weight += error.to(hidden.dtype).T @ hidden[chunk]
        weight = None if grad_weight is None else grad_weight.to(unembedding.dtype)
        return grad_hidden, weight, None, None

    @staticmethod
    def jvp(
        ctx: Any, hidden_t: Tensor | None, weight_t: Tensor | None, *_: None
    ) -> tuple[Tensor, None]:
        hidden, unembedding, targets = ctx.saved_tensors
        moved = []
        for chunk in _chunks(len(targets), unembedding.shape[0]):
            error = _errors(hidden[chunk], unembedding, targets[chunk], ctx.temperature)
            pushed = torch.zeros_like(error)
            if hidden_t is not None:
                pushed += hidden_t[chunk] @ unembedding.T
            if weight_t is not None:
                pushed += hidden[chunk] @ weight_t.T
            moved.append((error * pushed).sum(dim=-1) / ctx.temperature)
        return torch.cat(moved), None


def _errors(hidden: Tensor, unembedding: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """e_o - pi for every token of a chunk: [n, V]."""
    error = torch.softmax(_logits(hidden, unembedding, temperature), dim=-1).neg_()
    return error.scatter_add_(1, targets[:, None], torch.ones_like(error[:, :1]))
