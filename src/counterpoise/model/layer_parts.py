"""The building blocks of a decoder layer: norm, gate, attention heads and joined linear layers.

Each runs as one Triton kernel where `uses_kernels` says so, and in plain torch elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from counterpoise.model.kernels import uses_kernels


def rms_norm(x: Tensor, w: Tensor, epsilon: float) -> Tensor:
    """Root mean square norm: h = w * x / sqrt(mean(x^2) + epsilon), over the last axis.

    With u = x / sqrt(mean(x^2) + epsilon) and p = w * dh the backward pass is

        dx = (p - u mean(p u)) / sqrt(mean(x^2) + epsilon)          dw = sum_n dh u
    """
    if uses_kernels(x) and x.dim() == 2:
        from counterpoise.model.kernels import norm

        return norm.forward(x, w, epsilon)
    return F.rms_norm(x, (x.shape[-1],), w, epsilon)


def wide_rms_norm(x: Tensor, w: Tensor, offset: float, epsilon: float) -> Tensor:
    """The norm with weights w + offset, in float32 throughout and rounded once, in plain torch."""
    wide_dtype = torch.promote_types(x.dtype, torch.float32)
    wide_w = w.to(wide_dtype) + offset if offset else w.to(wide_dtype)
    return F.rms_norm(x.to(wide_dtype), (x.shape[-1],), wide_w, epsilon).to(x.dtype)


def rms_norm_backward(
    grad: Tensor,
    x: Tensor,
    w: Tensor,
    epsilon: float,
    residual_grad: Tensor,
    *,
    weight_grads: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(residual_grad + dx [N, D], h [N, D], dw [D]), with dx and dw as in `rms_norm`

    h is returned again, so that it need not be stored between the passes. If no weight is trained
    (`weight_grads=False`), h and dw are None.
    """
    if uses_kernels(x):
        from counterpoise.model.kernels import norm

        return norm.backward(grad, x, w, epsilon, residual_grad, weight_grads=weight_grads)
    scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + epsilon)
    unit, weighted_grad = x * scale, grad * w
    grad_x = scale * (weighted_grad - unit * (weighted_grad * unit).mean(dim=-1, keepdim=True))
    if not weight_grads:
        return residual_grad + grad_x, None, None
    return residual_grad + grad_x, unit * w, (grad * unit).sum(dim=0)


# The activations of gates, by their names in transformers. Kernels and `gate_backward` know silu.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}

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
    """(gradient of `joint`, gate(joint) again for the gradient of the weight after it)"""
    if uses_kernels(joint):
        from counterpoise.model.kernels import gate as kernel

        return kernel.backward(grad, joint, weight_grads=weight_grads)
    a, b = joint.chunk(2, dim=-1)
    s = a.sigmoid()
    grad_joint = torch.cat((grad * b * s * (1 + a * (1 - s)), grad * a * s), dim=-1)
    return grad_joint, a * s * b if weight_grads else None


# Queries and keys of each head: normalised (in Qwen3), then rotated by their position.
#
#     (a, b) halves of a head:     a' = a cos - b sin        b' = b cos + a sin        v unchanged
#
# This is rotary embedding in the half-split layout of all families here. Its transpose rotates
# back, which is the backward pass. On a GPU one kernel does it all and rounds once, at the end.

HeadNorms = tuple[Tensor, Tensor] | None  # norm weights of queries and of keys; None: no norms


def split_heads(
    qkv: Tensor, norms: HeadNorms, cos: Tensor, sin: Tensor, H: int, K: int, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """qkv [N, H + 2K, d], cos and sin [N, d] -> q [N, H, d], k and v [N, K, d]"""
    if uses_kernels(qkv):
        from counterpoise.model.kernels import heads as kernel

        return kernel.forward(qkv, norms, cos, sin, H, K, epsilon)
    # Queries and keys go through each operation together: with few tokens, every call counts.
    qk, v = qkv.split((H + K, K), dim=1)
    if norms:
        q_weight, k_weight = norms
        weight = torch.cat((q_weight.expand(H, -1), k_weight.expand(K, -1)))
        qk = F.rms_norm(qk, (qk.shape[-1],), None, epsilon) * weight
    q, k = rotate(qk, cos, sin).split((H, K), dim=1)
    return q, k, v


def split_heads_backward(
    grads: tuple[Tensor, Tensor, Tensor],
    qkv: Tensor,
    norms: HeadNorms,
    cos: Tensor,
    sin: Tensor,
    epsilon: float,
) -> tuple[Tensor, HeadNorms]:
    """(gradient of qkv [N, H + 2K, d], gradients of the norm weights).

    `grads` are the gradients of q, k and v. `qkv` is read only if there are norms.
    """
    dq, dk, dv = grads
    if uses_kernels(dq):
        from counterpoise.model.kernels import heads as kernel

        return kernel.backward(dq, dk, dv, qkv, norms, cos, sin, epsilon)
    dq, dk = rotate(dq, cos, -sin), rotate(dk, cos, -sin)
    if norms is None:
        return torch.cat((dq, dk, dv), dim=1), None
    q, k, _ = qkv.split((dq.shape[1], dk.shape[1], dv.shape[1]), dim=1)
    zero = torch.zeros((), dtype=dq.dtype, device=dq.device)
    dq, _, grad_norm_q = rms_norm_backward(dq, q, norms[0], epsilon, zero)
    dk, _, grad_norm_k = rms_norm_backward(dk, k, norms[1], epsilon, zero)
    assert grad_norm_q is not None
    assert grad_norm_k is not None
    return torch.cat((dq, dk, dv), dim=1), (grad_norm_q.sum(dim=0), grad_norm_k.sum(dim=0))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [N, H, d], cos and sin [N, d] -> [N, H, d]"""
    half = x.shape[-1] // 2
    quarter_turn = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos[:, None] + quarter_turn * sin[:, None]


def rotate_leading(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`rotate` for the first numbers of every head, as many as `cos` has; the others stay.

    OLMo 2 has its table in float32: the product is then rounded at the end.
    """
    width = cos.shape[-1]
    if width == x.shape[-1]:
        return rotate(x, cos, sin).to(x.dtype)
    return torch.cat((rotate(x[..., :width], cos, sin).to(x.dtype), x[..., width:]), dim=-1)


def join_weights(layers: Any) -> None:
    """Make linear layers with the same input one matrix product: q, k, v; gate, up.

    Their weights move into one block of memory, once, when a policy is made. Each stays a parameter
    of its own, under its own name, for the optimizer and for checkpoints. Code that runs without
    autograd (a sampler, or `model/layer.py` with its own backward pass) reads the block as one
    matrix. Where autograd needs every parameter by itself the weights are concatenated, which costs
    next to nothing beside the product.
    """
    for layer in layers:
        attention, mlp = layer.self_attn, layer.mlp
        _join((attention.q_proj, attention.k_proj, attention.v_proj))
        _join((mlp.gate_proj, mlp.up_proj))


def _join(linears: Sequence[nn.Linear]) -> None:
    joint_block = torch.cat([linear.weight.detach() for linear in linears])
    weight_views = joint_block.split([len(linear.weight) for linear in linears])
    for linear, weight_view in zip(linears, weight_views, strict=True):
        linear.weight.data = weight_view


def joint_linear(x: Tensor, linears: Sequence[nn.Linear]) -> Tensor:
    """The concatenated outputs of several linear layers with the same input: [N, sum of widths]."""
    biases: list[Tensor] = [linear.bias for linear in linears if linear.bias is not None]
    weight = joint_weight([linear.weight for linear in linears])
    return F.linear(x, weight, torch.cat(biases) if biases else None)


def joint_weight(weights: Sequence[Tensor]) -> Tensor:
    """The weights stacked as one matrix; a view without copying if they are adjacent in memory.

    With gradients enabled several are always copied, so that autograd reaches every parameter.
    """
    if len(weights) == 1:
        return weights[0]
    if not torch.is_grad_enabled() and _adjacent(weights):
        total_rows, width = sum(len(weight) for weight in weights), weights[0].shape[1]
        return weights[0].as_strided((total_rows, width), (width, 1))
    return torch.cat(list(weights))


def _adjacent(weights: Sequence[Tensor]) -> bool:
    """Whether each weight begins where the one before it ends, in the same storage."""
    expected_address = weights[0].data_ptr()
    storage = weights[0].untyped_storage().data_ptr()
    for weight in weights:
        if weight.data_ptr() != expected_address or weight.untyped_storage().data_ptr() != storage:
            return False
        expected_address += weight.numel() * weight.element_size()
    return True
