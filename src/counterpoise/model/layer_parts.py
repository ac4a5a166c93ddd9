"""The parts of a decoder layer: norms, gate, heads, and weights laid side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from counterpoise.model.kernels import uses_kernels


def rms_norm(x: Tensor, w: Tensor, epsilon: float) -> Tensor:
    """Root mean square norm: h = w * x / sqrt(mean(x^2) + epsilon), over the last axis.

    With u = x / sqrt(mean(x^2) + epsilon) and p = w * dh the backward pass is

        dx = (p - u mean(p u)) / sqrt(mean(x^2) + epsilon)          dw = sum_n dh u

    It is given another gradient to add to dx (the residual stream's) and returns h once more, so
    that h need not be kept between the passes. Where no weight is trained, neither h nor dw is
    wanted.
    """
    if uses_kernels(x) and x.dim() == 2:
        from counterpoise.model.kernels import norm

        return norm.forward(x, w, epsilon)
    return F.rms_norm(x, (x.shape[-1],), w, epsilon)


def rms_norm_backward(
    grad: Tensor,
    x: Tensor,
    w: Tensor,
    epsilon: float,
    residual_grad: Tensor,
    *,
    weight_grads: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(beside + dx [N, D], h [N, D], dw [D])"""
    if uses_kernels(x):
        from counterpoise.model.kernels import norm

        return norm.backward(grad, x, w, epsilon, residual_grad, weight_grads=weight_grads)
    scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + epsilon)
    unit, pulled = x * scale, grad * w
    dx = scale * (pulled - unit * (pulled * unit).mean(dim=-1, keepdim=True))
    if not weight_grads:
        return residual_grad + dx, None, None
    return residual_grad + dx, unit * w, (grad * unit).sum(dim=0)


# The gated activation of the MLP: silu(a) * b, a and b side by side in one tensor.
#
# With s = sigmoid(a):     da = g b s (1 + a (1 - s))        db = g a s


def apply_gate(joint: Tensor) -> Tensor:
    """[N, 2 I] -> [N, I]"""
    if uses_kernels(joint):
        from counterpoise.model.kernels import gate as kernel

        return kernel.forward(joint)
    a, b = joint.chunk(2, dim=-1)
    return F.silu(a) * b


def gate_backward(
    grad: Tensor, joint: Tensor, *, weight_grads: bool = True
) -> tuple[Tensor, Tensor | None]:
    """(gradient of `joint`, gate(joint) once more for the weight after it: it need not be kept)"""
    if uses_kernels(joint):
        from counterpoise.model.kernels import gate as kernel

        return kernel.backward(grad, joint, weight_grads=weight_grads)
    a, b = joint.chunk(2, dim=-1)
    s = a.sigmoid()
    found = torch.cat((grad * b * s * (1 + a * (1 - s)), grad * a * s), dim=-1)
    return found, a * s * b if weight_grads else None


# Queries and keys of each head: normed (Qwen3 does), then turned by their position.
#
#     (a, b) halves of a head:     a' = a cos - b sin        b' = b cos + a sin        v as it is
#
# This is rotary embedding in the half-split layout that Llama, Qwen2 and Qwen3 share. Its transpose
# turns back, which is the backward pass. On a GPU one kernel does it all and rounds once, at the
# end.

HeadNorms = tuple[Tensor, Tensor] | None  # weights of the norm of queries and of keys


def split_heads(
    qkv: Tensor, norms: HeadNorms, cos: Tensor, sin: Tensor, H: int, K: int, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """qkv [N, H + 2K, d], cos and sin [N, d] -> q [N, H, d], k and v [N, K, d]"""
    if uses_kernels(qkv):
        from counterpoise.model.kernels import heads as kernel

        return kernel.forward(qkv, norms, cos, sin, H, K, epsilon)
    q, k, v = qkv.split((H, K, K), dim=1)
    if norms:
        q, k = rms_norm(q, norms[0], epsilon), rms_norm(k, norms[1], epsilon)
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def split_heads_backward(
    dq: Tensor, dk: Tensor, dv: Tensor, qkv: Tensor, norms: HeadNorms,
    cos: Tensor, sin: Tensor, epsilon: float,
) -> tuple[Tensor, HeadNorms]:  # fmt: skip
    """(gradient of qkv [N, H + 2K, d], of the norms' weights); qkv is looked at for norms only."""
    if uses_kernels(dq):
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


def join_weights(layers: Any) -> None:
    """Linear layers that read the same input as one matrix product: q, k, v; gate, up.

    `join_weights` moves their weights into one block of memory, once, when a policy is made.
    Each stays a parameter of its own, under its own name, for the optimizer and for checkpoints; a
    sampler, which needs no gradient, sees the block as one matrix, and so does a layer whose
    backward pass is written out (`model/layer.py`). Where autograd is to hand every parameter its
    part the weights are copied together, which costs next to nothing beside the product.
    """
    for layer in layers:
        attention, mlp = layer.self_attn, layer.mlp
        _join((attention.q_proj, attention.k_proj, attention.v_proj))
        _join((mlp.gate_proj, mlp.up_proj))


def _join(parts: Sequence[nn.Linear]) -> None:
    block = torch.cat([part.weight.detach() for part in parts])
    for part, view in zip(parts, block.split([len(part.weight) for part in parts]), strict=True):
        part.weight.data = view


def joint_linear(x: Tensor, parts: Sequence[nn.Linear]) -> Tensor:
    """[N, sum of the parts' widths]"""
    biases: list[Tensor] = [part.bias for part in parts if part.bias is not None]
    return F.linear(
        x, joint_weight([part.weight for part in parts]), torch.cat(biases) if biases else None
    )


def joint_weight(weights: Sequence[Tensor]) -> Tensor:
    """The weights above one another; no copy where they lie so and nothing is differentiated."""
    if not torch.is_grad_enabled() and _adjacent(weights):
        rows, width = sum(len(w) for w in weights), weights[0].shape[1]
        return weights[0].as_strided((rows, width), (width, 1))
    return torch.cat(list(weights))


def _adjacent(weights: Sequence[Tensor]) -> bool:
    end = weights[0].data_ptr()
    storage = weights[0].untyped_storage().data_ptr()
    for weight in weights:
        if weight.data_ptr() != end or weight.untyped_storage().data_ptr() != storage:
            return False
        end += weight.numel() * weight.element_size()
    return True
