"""log pi(o) and entropy of every token, without ever holding a tokens x vocabulary matrix.

    z = W h / temperature        log pi(o) = z_o - logsumexp(z)        H = logsumexp(z) - <pi, z>

Some models cap their logits softly: then z = c tanh(W h / c) / temperature, and every derivative by
W h has the factor 1 - tanh(W h / c)^2.

The forward pass works on chunks of tokens and stores three numbers for each: log pi(o), H and, for
the backward pass, logsumexp(z). The backward pass recomputes a chunk's probabilities from h:

    d log pi(o) / dz = e_o - pi        dH / dz = -pi (log pi + H)

The entropy usually is only reported, and no gradient flows through it; `train_entropy` turns its
gradient on, for an entropy bonus.
Forward mode is exact too: along (dh, dW), d log pi(o) = (e_o - pi)^T (dW h + W dh) / temperature.

On a GPU in half precision a chunk of logits is read once in the forward pass, and read and written
once in the backward pass (`model/kernels/head.py`); torch's own operations take six passes. The
gradient of the entropy has no kernel: with it, the backward pass uses torch's operations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from counterpoise.model.kernels import uses_kernels

CHUNK_ELEMENTS = 1 << 22  # logits of one chunk on the CPU: 16 MB in float32
CHUNK_ELEMENTS_CUDA = 1 << 27  # 256 MB in half precision: large matrix products run best
TENSORS_WITH_ENTROPY = 4  # tensors of a chunk's size, in float32, that the entropy's gradient needs


def token_logprobs(
    hidden_N: Tensor,
    unembedding_V: Tensor,
    targets_N: Tensor,
    temperature: float = 1.0,
    *,
    softcap: float = 0.0,
    train_entropy: bool = False,
) -> tuple[Tensor, Tensor]:
    """(log-probabilities [N], entropies [N]) of `targets_N`, in float32 (float64 stays float64).

    `softcap` is c above; 0: the logits have no cap.
    """
    logprobs, entropies = _Head.apply(
        hidden_N, unembedding_V, targets_N, temperature, softcap, train_entropy
    )
    return logprobs, entropies


def token_chunks(hidden: Tensor, unembedding: Tensor, tensors: int = 1) -> list[slice]:
    """Slices of tokens, small enough for `tensors` tensors of their logits to fit in memory."""
    max_elements = (CHUNK_ELEMENTS_CUDA if hidden.is_cuda else CHUNK_ELEMENTS) // tensors
    num_tokens, chunk_size = len(hidden), max(1, max_elements // len(unembedding))
    return [
        slice(start, min(start + chunk_size, num_tokens))
        for start in range(0, num_tokens, chunk_size)
    ]


def cap_logits(logits: Tensor, softcap: float) -> Tensor:
    """c tanh(z / c) for a soft cap c; 0: no cap."""
    return softcap * torch.tanh(logits / softcap) if softcap else logits


def cap_slope(capped_logits: Tensor, softcap: float) -> Tensor:
    """The derivative of `cap_logits`, from its result: 1 - (cap(z) / c)^2."""
    return 1 - (capped_logits / softcap).square()


def scale_logits(logits: Tensor, temperature: float) -> Tensor:
    """logits / temperature, in float32 or float64."""
    if logits.dtype != torch.float64:
        logits = logits.float()
    return logits if temperature == 1.0 else logits / temperature


def _summarise(
    logits: Tensor, targets: Tensor, temperature: float, out: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Fill (log pi(o), entropy, logsumexp), each [n], from the logits of a chunk [n, V]."""
    if uses_kernels(logits):
        from counterpoise.model.kernels.head import summarise

        return summarise(logits, targets, temperature, out)
    z = scale_logits(logits, temperature)
    all_logprobs = torch.log_softmax(z, dim=-1)
    logprobs, entropies, lse = out
    torch.gather(all_logprobs, 1, targets[:, None], out=logprobs[:, None])
    torch.sub(z.gather(1, targets[:, None]).squeeze(1), logprobs, out=lse)
    torch.neg((all_logprobs.exp() * all_logprobs).sum(dim=-1), out=entropies)
    return None


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        unembedding: Tensor,
        targets: Tensor,
        temperature: float,
        softcap: float,
        train_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        result_dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logprobs, entropies, lse = (
            hidden.new_empty(len(hidden), dtype=result_dtype) for _ in range(3)
        )
        for chunk in token_chunks(hidden, unembedding):
            chunk_outputs = (logprobs[chunk], entropies[chunk], lse[chunk])
            logits = cap_logits(hidden[chunk] @ unembedding.T, softcap)
            _summarise(logits, targets[chunk], temperature, chunk_outputs)
        kept_entropies = (entropies,) if train_entropy else ()
        ctx.save_for_backward(hidden, unembedding, targets, lse, *kept_entropies)
        ctx.save_for_forward(hidden, unembedding, targets)
        ctx.temperature, ctx.softcap, ctx.train_entropy = temperature, softcap, train_entropy
        if not train_entropy:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, grad: Tensor, entropy_grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, unembedding, targets, lse, *kept_entropies = ctx.saved_tensors
        hidden_needs_grad, weight_needs_grad = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if hidden_needs_grad else None
        grad_weight = torch.zeros_like(unembedding, dtype=grad.dtype) if weight_needs_grad else None
        # The weight's gradient is summed over chunks in float32; half precision would lose bits.
        tensors_per_chunk = TENSORS_WITH_ENTROPY if ctx.train_entropy else 1
        for chunk in token_chunks(hidden, unembedding, tensors_per_chunk):
            logits = cap_logits(hidden[chunk] @ unembedding.T, ctx.softcap)
            # Taken now, because a kernel overwrites the logits with their gradient.
            slope = cap_slope(logits, ctx.softcap) if ctx.softcap else None
            if ctx.train_entropy:
                grad_logits = _logit_gradient_with_entropy(
                    scale_logits(logits, ctx.temperature) - lse[chunk, None],
                    targets[chunk],
                    kept_entropies[0][chunk, None],
                    grad[chunk, None] / ctx.temperature,
                    entropy_grad[chunk, None] / ctx.temperature,
                )
            else:
                grad_logits = _logit_gradient(
                    logits, targets[chunk], lse[chunk], grad[chunk], ctx.temperature
                )
            if slope is not None:
                grad_logits = grad_logits * slope
            if grad_hidden is not None:
                grad_hidden[chunk] = grad_logits.to(hidden.dtype) @ unembedding
            if grad_weight is not None:
                grad_weight += grad_logits.to(hidden.dtype).T @ hidden[chunk]
        grad_unembedding = None if grad_weight is None else grad_weight.to(unembedding.dtype)
        return grad_hidden, grad_unembedding, None, None, None, None

    @staticmethod
    def jvp(
        ctx: Any, hidden_tangent: Tensor | None, weight_tangent: Tensor | None, *_: None
    ) -> tuple[Tensor, None]:
        hidden, unembedding, targets = ctx.saved_tensors
        logprob_tangents = []
        for chunk in token_chunks(hidden, unembedding):
            logits = cap_logits(hidden[chunk] @ unembedding.T, ctx.softcap)
            residual = _residuals(logits, targets[chunk], ctx.temperature)
            if ctx.softcap:
                residual = residual * cap_slope(logits, ctx.softcap)
            logit_tangent = torch.zeros_like(residual)
            if hidden_tangent is not None:
                logit_tangent += hidden_tangent[chunk] @ unembedding.T
            if weight_tangent is not None:
                logit_tangent += hidden[chunk] @ weight_tangent.T
            logprob_tangents.append((residual * logit_tangent).sum(dim=-1) / ctx.temperature)
        return torch.cat(logprob_tangents), None


def _logit_gradient(
    logits: Tensor, targets: Tensor, lse: Tensor, grad: Tensor, temperature: float
) -> Tensor:
    """(e_o - pi) * grad / temperature for every token of a chunk: [n, V]."""
    if uses_kernels(logits):
        from counterpoise.model.kernels.head import logit_gradient_

        return logit_gradient_(logits, targets, lse, grad.contiguous(), temperature)
    return _residuals(logits, targets, temperature).mul_(grad[:, None] / temperature)


def _logit_gradient_with_entropy(
    all_logprobs: Tensor, targets: Tensor, entropies: Tensor, grad: Tensor, entropy_grad: Tensor
) -> Tensor:
    """(e_o - pi) * grad - pi (log pi + H) * entropy_grad for every token of a chunk: [n, V]."""
    logit_gradient = (all_logprobs + entropies).mul_(entropy_grad).add_(grad)
    logit_gradient.mul_(all_logprobs.exp_()).neg_()
    return logit_gradient.scatter_add_(1, targets[:, None], grad)


def _residuals(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """e_o - pi for every token of a chunk: [n, V]."""
    residual = torch.softmax(scale_logits(logits, temperature), dim=-1).neg_()
    return residual.scatter_add_(1, targets[:, None], torch.ones_like(residual[:, :1]))
