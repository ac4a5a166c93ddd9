"""One decoder layer as an autograd function with a hand-written backward pass.

    h = norm(x)    q, k, v = heads(W_qkv h)    o = attention(q, k, v)    y = x + W_o o
    m = norm(y)    u = W_gu m                  z = y + W_d gate(u)

Autograd would store every intermediate and walk some fifty small nodes a layer; on a GPU that walk
takes longer than the arithmetic of a small model. Written by hand, a layer stores x, q, k, v, o, y
and u. The backward pass recomputes the rest: elementwise operations that cost next to nothing.
Tests compare it with autograd.

The forward pass rounds exactly where `Decoder` without gradients does, also where biases are added:
unchanged weights must give identical old and new log-probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from counterpoise.model.flash import FlashOutputs, PackedSegments, flash_backward, flash_forward
from counterpoise.model.layer_parts import (
    HeadNorms,
    apply_gate,
    gate_backward,
    joint_weight,
    rms_norm,
    rms_norm_backward,
    split_heads,
    split_heads_backward,
)


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The sizes of a decoder layer, and the epsilon of its norms."""

    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float


class LayerParameters(NamedTuple):
    """The parameters of a layer, in the order of `FusedLayer`; None for those it does not have."""

    norm_x: Tensor
    norm_y: Tensor
    q_weight: Tensor
    k_weight: Tensor
    v_weight: Tensor
    o_weight: Tensor
    gate_weight: Tensor
    up_weight: Tensor
    down_weight: Tensor
    q_norm: Tensor | None  # norms of queries and keys: Qwen3
    k_norm: Tensor | None
    q_bias: Tensor | None
    k_bias: Tensor | None
    v_bias: Tensor | None
    o_bias: Tensor | None
    gate_bias: Tensor | None
    up_bias: Tensor | None
    down_bias: Tensor | None

    @property
    def qkv_weight(self) -> Tensor:
        """W_qkv"""
        return joint_weight((self.q_weight, self.k_weight, self.v_weight))

    @property
    def gate_up_weight(self) -> Tensor:
        """W_gu"""
        return joint_weight((self.gate_weight, self.up_weight))

    @property
    def head_norms(self) -> HeadNorms:
        """The norm weights of queries and keys, if the layer has them."""
        return None if self.q_norm is None or self.k_norm is None else (self.q_norm, self.k_norm)


def layer_parameters(layer: Any) -> LayerParameters:
    """The parameters of a layer of transformers."""
    attention, mlp = layer.self_attn, layer.mlp
    q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
    normed = "q_norm" in attention._modules  # Qwen3
    return LayerParameters(
        layer.input_layernorm.weight, layer.post_attention_layernorm.weight,
        q.weight, k.weight, v.weight, attention.o_proj.weight,
        mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight,
        attention.q_norm.weight if normed else None, attention.k_norm.weight if normed else None,
        q.bias, k.bias, v.bias, attention.o_proj.bias,
        mlp.gate_proj.bias, mlp.up_proj.bias, mlp.down_proj.bias,
    )  # fmt: skip


class FusedLayer(torch.autograd.Function):
    """(x [N, D], cos, sin [N, d], segments, shape, *parameters) -> z [N, D]"""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        segments: PackedSegments,
        shape: LayerShape,
        *parameters: Tensor,
    ) -> Tensor:
        layer = LayerParameters(*parameters)
        H, K, d, epsilon = shape.heads, shape.kv_heads, shape.head_dim, shape.epsilon
        head_norms = layer.head_norms
        qkv_bias = _join_biases(layer.q_bias, layer.k_bias, layer.v_bias)
        joint_qkv = F.linear(rms_norm(x, layer.norm_x, epsilon), layer.qkv_weight, qkv_bias)
        qkv = joint_qkv.view(-1, H + 2 * K, d)
        q, k, v = split_heads(qkv, head_norms, cos, sin, H, K, epsilon)
        o, lse, state = flash_forward(q, k, v, segments)
        residual = x if layer.o_bias is None else x + layer.o_bias
        y = torch.addmm(residual, o.view(len(x), -1), layer.o_weight.T)
        gate_up_bias = _join_biases(layer.gate_bias, layer.up_bias)
        u = F.linear(rms_norm(y, layer.norm_y, epsilon), layer.gate_up_weight, gate_up_bias)
        # Only the backward pass of the head norms needs qkv. Without them it is freed here, and q
        # is stored in its place, but never read from there.
        unnormed = q if head_norms is None else qkv
        ctx.save_for_backward(x, unnormed, q, k, v, o, lse, *state, y, u, cos, sin, *parameters)
        ctx.segments, ctx.shape = segments, shape
        residual = y if layer.down_bias is None else y + layer.down_bias
        return torch.addmm(residual, apply_gate(u), layer.down_weight.T)

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        x, unnormed, q, k, v, o, lse, seed, unused, y, u, cos, sin, *parameters = ctx.saved_tensors
        layer = LayerParameters(*parameters)
        epsilon, N = ctx.shape.epsilon, len(x)
        # Where no parameter is trained only dx is needed, which saves half of the products.
        weight_grads = any(ctx.needs_input_grad[5:])

        # MLP: z = y + W_d gate(u), u = W_gu m, m = norm(y). rms_norm_backward adds dz, the gradient
        # of the residual stream.
        du, gated = gate_backward(dz @ layer.down_weight, u, weight_grads=weight_grads)
        dw_down = None if gated is None else dz.T @ gated
        dm = du @ layer.gate_up_weight
        dy, m, dnorm_y = rms_norm_backward(
            dm, y, layer.norm_y, epsilon, dz, weight_grads=weight_grads
        )
        dw_gate, dw_up = (None, None) if m is None else (du.T @ m).chunk(2)

        # Attention: y = x + W_o o. rms_norm_backward adds dy in the same way.
        do = (dy @ layer.o_weight).view_as(o)
        dw_o = dy.T @ o.view(N, -1) if weight_grads else None
        attention_outputs = FlashOutputs(o, lse, (seed, unused))
        dq, dk, dv = flash_backward(do, q, k, v, attention_outputs, ctx.segments)
        dqkv, dnorms = split_heads_backward(
            (dq, dk, dv), unnormed, layer.head_norms, cos, sin, epsilon
        )
        joint_grad = dqkv.view(N, -1)
        dh = joint_grad @ layer.qkv_weight
        dx, h, dnorm_x = rms_norm_backward(
            dh, x, layer.norm_x, epsilon, dy, weight_grads=weight_grads
        )
        qkv_sizes = [len(layer.q_weight), len(layer.k_weight), len(layer.v_weight)]
        dw_q, dw_k, dw_v = (None, None, None) if h is None else (joint_grad.T @ h).split(qkv_sizes)
        qkv_bias_grads = (
            (None, None, None) if layer.q_bias is None else joint_grad.sum(dim=0).split(qkv_sizes)
        )
        return (
            dx, None, None, None, None,
            dnorm_x, dnorm_y, dw_q, dw_k, dw_v, dw_o, dw_gate, dw_up, dw_down,
            *(dnorms or (None, None)),
            *qkv_bias_grads, None if layer.o_bias is None else dy.sum(dim=0),
            *((None, None) if layer.gate_bias is None else du.sum(dim=0).chunk(2)),
            None if layer.down_bias is None else dz.sum(dim=0),
        )  # fmt: skip


def _join_biases(*biases: Tensor | None) -> Tensor | None:
    """The biases as one vector; None if the layer has none."""
    existing = [bias for bias in biases if bias is not None]
    return torch.cat(existing) if existing else None
