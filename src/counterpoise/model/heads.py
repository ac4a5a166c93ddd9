"""Queries and keys of each head: normed (Qwen3 does), then turned by their position.

    (a, b) halves of a head:     a' = a cos - b sin        b' = b cos + a sin        v as it is

This is rotary embedding in the half-split layout that Llama, Qwen2 and Qwen3 share. Its transpose
turns back, which is the backward pass. On a GPU one kernel does it all and rounds once, at the end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from counterpoise.model.kernels import fused
from counterpoise.model.norm import rms_norm, rms_norm_backward

Norms = tuple[Tensor, Tensor] | None  # weights of the norm of queries and of keys


def heads(
    qkv: Tensor, norms: Norms, cos: Tensor, sin: Tensor, H: int, K: int, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """qkv [N, H + 2K, d], cos and sin [N, d] -> q [N, H, d], k and v [N, K, d]"""
    if fused(qkv):
        from counterpoise.model.kernels import heads as kernel

        return kernel.forward(qkv, norms, cos, sin, H, K, epsilon)
    q, k, v = qkv.split((H, K, K), dim=1)
    if norms:
        q, k = rms_norm(q, norms[0], epsilon), rms_norm(k, norms[1], epsilon)
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def heads_backward(
    dq: Tensor, dk: Tensor, dv: Tensor, qkv: Tensor, norms: Norms,
    cos: Tensor, sin: Tensor, epsilon: float,
) -> tuple[Tensor, Norms]:  # fmt: skip
    """(gradient of qkv [N, H + 2K, d], of the norms' weights); qkv is looked at for norms only."""
    if fused(dq):
        from counterpoise.model.kernels import heads as kernel

        return kernel.backward(dq, dk, dv, qkv, norms, cos, sin, epsilon)
    dq, dk = rotate(dq, cos, -sin), rotate(dk, cos, -sin)
    if norms is None:
        return torch.cat((dq, dk, dv), dim=1), None
    q, k, _ = qkv.split((dq.shape[1], dk.shape[1], dv.shape[1]), dim=1)
    zero = torch.zeros((), dtype=dq.dtype, device=dq.device)
    dq, _, dnorm_q = rms_norm_backward(dq, q, norms[0], epsilon, zero)
    dk, _, dnorm_k = rms_norm_backward(dk, k, norms[1], epsilon, zero)
    assert dnorm_q is not None
    assert dnorm_k is not None
    return torch.cat((dq, dk, dv), dim=1), (dnorm_q.sum(dim=0), dnorm_k.sum(dim=0))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [N, H, d], cos and sin [N, d] -> [N, H, d]"""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos[:, None] + turned * sin[:, None]
