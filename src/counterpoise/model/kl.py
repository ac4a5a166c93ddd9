"""KL(p || q) of every token over the whole vocabulary, without holding tokens x vocabulary.

    p = softmax(W h / temperature)      the student, trained through h and W
    q = softmax(W g / temperature)      the teacher, held fixed: no gradient, not even through W.
                                        It may have another W than the student

    d = log p - log q        KL = <p, d>        dKL / d(W h / temperature) = p (d - KL)

d is computed from z = W (h - g) / temperature as d = z + log <p, exp(-z)>, so that what teacher and
student share is not rounded twice; if the teacher has its own W, from the difference of the logits.
The forward pass works on chunks of tokens and stores one number for each; the backward pass
recomputes a chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from counterpoise.model.head import scale_logits, token_chunks

# Tensors of a chunk's size in memory at once; they are float32 even if logits are half precision.
TENSORS_PER_CHUNK = 8


def token_divergences(
    hidden_N: Tensor,
    teacher_N: Tensor,
    unembedding_V: Tensor,
    temperature: float = 1.0,
    teacher_unembedding_V: Tensor | None = None,
) -> Tensor:
    """KL [N] for hidden states [N, D] of student and teacher, in float32 (float64 stays).

    Without `teacher_unembedding_V` [V, D] the teacher has the student's unembedding.
    """
    divergences: Tensor = _Divergence.apply(
        hidden_N, unembedding_V, teacher_N, temperature, teacher_unembedding_V
    )
    return divergences


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        unembedding: Tensor,
        teacher: Tensor,
        temperature: float,
        teacher_unembedding: Tensor | None,
    ) -> Tensor:
        result_dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        divergences = hidden.new_empty(len(hidden), dtype=result_dtype)
        for chunk in token_chunks(hidden, unembedding, TENSORS_PER_CHUNK):
            p, d = _compare_distributions(
                hidden[chunk], teacher[chunk], unembedding, temperature, teacher_unembedding
            )
            divergences[chunk] = (p * d).sum(dim=-1)
        ctx.save_for_backward(hidden, unembedding, teacher, divergences, teacher_unembedding)
        ctx.temperature = temperature
        return divergences

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, unembedding, teacher, divergences, teacher_unembedding = ctx.saved_tensors
        hidden_needs_grad, weight_needs_grad = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if hidden_needs_grad else None
        grad_weight = torch.zeros_like(unembedding, dtype=grad.dtype) if weight_needs_grad else None
        for chunk in token_chunks(hidden, unembedding, TENSORS_PER_CHUNK):
            p, d = _compare_distributions(
                hidden[chunk], teacher[chunk], unembedding, ctx.temperature, teacher_unembedding
            )
            grad_scale = grad[chunk, None] / ctx.temperature
            grad_logits = p.mul_(d.sub_(divergences[chunk, None])).mul_(grad_scale).to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[chunk] = grad_logits @ unembedding
            if grad_weight is not None:
                grad_weight += grad_logits.T @ hidden[chunk]
        grad_unembedding = None if grad_weight is None else grad_weight.to(unembedding.dtype)
        return grad_hidden, grad_unembedding, None, None, None


def _compare_distributions(
    hidden: Tensor,
    teacher: Tensor,
    unembedding: Tensor,
    temperature: float,
    teacher_unembedding: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """(p, log p - log q) of a chunk, each [n, V]."""
    logits = scale_logits(hidden @ unembedding.T, temperature)
    log_p = torch.log_softmax(logits, dim=-1)
    if teacher_unembedding is None:
        z = scale_logits((hidden - teacher) @ unembedding.T, temperature)
    else:
        z = logits - scale_logits(teacher @ teacher_unembedding.T, temperature)
    log_normaliser = torch.logsumexp(log_p - z, dim=-1, keepdim=True)
    return log_p.exp_(), z + log_normaliser
