"""KL(p || q) of every token over the whole vocabulary, without ever holding tokens x vocabulary.

    p = softmax(W h / temperature)      trained: through h and W
    q = softmax(W g / temperature)      a teacher's, held fixed: no gradient, also not through W

    d = log p - log q        KL = <p, d>        dKL / d(W h / temperature) = p (d - KL)

d is computed from z = W (h - g) / temperature, d = z + log <p, exp(-z)>: what teacher and student
share is not rounded twice. The forward walks over chunks of tokens and keeps one number for each;
the backward computes a chunk again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from counterpoise.model.head import scale_logits, token_chunks

TENSORS_PER_CHUNK = 8  # tensors of a chunk's size at once, float32 where logits are half of that


def token_divergences(
    hidden_N: Tensor, teacher_N: Tensor, unembedding_V: Tensor, temperature: float = 1.0
) -> Tensor:
    """KL [N] for hidden states [N, D] of student and teacher, in float32 (float64 stays)."""
    found: Tensor = _Divergence.apply(hidden_N, unembedding_V, teacher_N, temperature)
    return found


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, unembedding: Tensor, teacher: Tensor, temperature: float
    ) -> Tensor:
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        found = hidden.new_empty(len(hidden), dtype=dtype)
        for part in token_chunks(hidden, unembedding, TENSORS_PER_CHUNK):
            p, d = _compared(hidden[part], teacher[part], unembedding, temperature)
            found[part] = (p * d).sum(dim=-1)
        ctx.save_for_backward(hidden, unembedding, teacher, found)
        ctx.temperature = temperature
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, unembedding, teacher, found = ctx.saved_tensors
        wanted_h, wanted_w = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if wanted_h else None
        grad_weight = torch.zeros_like(unembedding, dtype=grad.dtype) if wanted_w else None
        for part in token_chunks(hidden, unembedding, TENSORS_PER_CHUNK):
            p, d = _compared(hidden[part], teacher[part], unembedding, ctx.temperature)
            scale = grad[part, None] / ctx.temperature
            pushed = p.mul_(d.sub_(found[part, None])).mul_(scale).to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = pushed @ unembedding
            if grad_weight is not None:
                grad_weight += pushed.T @ hidden[part]
        weight = None if grad_weight is None else grad_weight.to(unembedding.dtype)
        return grad_hidden, weight, None, None


def _compared(
    hidden: Tensor, teacher: Tensor, unembedding: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """(p, log p - log q) of a chunk, each [n, V]."""
    log_p = torch.log_softmax(scale_logits(hidden @ unembedding.T, temperature), dim=-1)
    change = hidden - teacher
    z = scale_logits(change @ unembedding.T, temperature)
    apart = torch.logsumexp(log_p - z, dim=-1, keepdim=True)
    return log_p.exp_(), z + apart
