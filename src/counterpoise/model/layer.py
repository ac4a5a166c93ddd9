"""One decoder layer as an autograd function with a hand-written backward pass.

    h = norm(x)    q, k, v = heads(W_qkv h)    o = attention(q, k, v)    y = x + W_o o
    m = norm(y)    u = W_gu m                  z = y + W_d gate(u)

Autograd would store every intermediate and walk some fifty small nodes a layer; on a GPU that walk
takes longer than the arithmetic of a small model. Written by hand, a layer stores x, q, k, v, o, y
and u and recomputes the rest in the backward pass, which is elementwise and nearly free. Tests
compare it with autograd.

The forward pass rounds exactly where `Decoder` without gradients does, with biases inside the
products: unchanged weights must give identical old and new log-probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from counterpoise.model.flash import FlashOutputs, PackedSegments, flash_backward, flash_forward
from counterpoise.model.layer_parts import (
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


# w: weights, b: biases, n: norms of queries and keys; q k v o: attention, g u d: gate, up, down
LayerParameters = tuple[Tensor | None, ...]


def layer_parameters(layer: Any) -> LayerParameters:
    """The layer's parameters in the order of `FusedLayer`; None for those it does not have."""
    attention, mlp = layer.self_attn, layer.mlp
    q, k, v = attention.q_proj, attention.k_proj, attention.v_proj
    normed = "q_norm" in attention._modules  # Qwen3
    return (
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
        norm_x, norm_y, wq, wk, wv, wo, wg, wu, wd, nq, nk, bq, bk, bv, bo, bg, bu, bd = parameters
        H, K, d, epsilon = shape.heads, shape.kv_heads, shape.head_dim, shape.epsilon
        norms = None if nq is None else (nq, nk)
        qkv_bias = None if bq is None else torch.cat((bq, bk, bv))
        joint_qkv = F.linear(rms_norm(x, norm_x, epsilon), joint_weight((wq, wk, wv)), qkv_bias)
        qkv = joint_qkv.view(-1, H + 2 * K, d)
        q, k, v = split_heads(qkv, norms, cos, sin, H, K, epsilon)
        o, lse, state = flash_forward(q, k, v, segments)
        y = torch.addmm(x if bo is None else x + bo, o.view(len(x), -1), wo.T)
        gate_up_bias = None if bg is None else torch.cat((bg, bu))
        u = F.linear(rms_norm(y, norm_y, epsilon), joint_weight((wg, wu)), gate_up_bias)
        # Only the backward pass of the norms needs qkv; without norms it is freed here.
        unnormed = q if norms is None else qkv
        ctx.save_for_backward(x, unnormed, q, k, v, o, lse, *state, y, u, cos, sin, *parameters)
        ctx.segments, ctx.shape = segments, shape
        return torch.addmm(y if bd is None else y + bd, apply_gate(u), wd.T)

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        x, unnormed, q, k, v, o, lse, seed, unused, y, u, cos, sin, *parameters = ctx.saved_tensors
        norm_x, norm_y, wq, wk, wv, wo, wg, wu, wd, nq, nk, bq, _bk, _bv, bo, bg, _bu, bd = (
            parameters
        )
        epsilon, N = ctx.shape.epsilon, len(x)
        norms = None if nq is None else (nq, nk)
        # Where no parameter is trained only dx is needed, which saves half of the products.
        weight_grads = any(ctx.needs_input_grad[5:])

        # MLP: z = y + W_d gate(u), u = W_gu m, m = norm(y). The residual gradient dz joins dm's.
        du, gated = gate_backward(dz @ wd, u, weight_grads=weight_grads)
        dwd = None if gated is None else dz.T @ gated
        dm = du @ joint_weight((wg, wu))
        dy, m, dnorm_y = rms_norm_backward(dm, y, norm_y, epsilon, dz, weight_grads=weight_grads)
        dwg, dwu = (None, None) if m is None else (du.T @ m).chunk(2)

        # Attention: y = x + W_o o. The residual gradient dy joins dh's.
        do = (dy @ wo).view_as(o)
        dwo = dy.T @ o.view(N, -1) if weight_grads else None
        attention_outputs = FlashOutputs(o, lse, (seed, unused))
        dq, dk, dv = flash_backward(do, q, k, v, attention_outputs, ctx.segments)
        dqkv, dnorms = split_heads_backward((dq, dk, dv), unnormed, norms, cos, sin, epsilon)
        joint_grad = dqkv.view(N, -1)
        dh = joint_grad @ joint_weight((wq, wk, wv))
        dx, h, dnorm_x = rms_norm_backward(dh, x, norm_x, epsilon, dy, weight_grads=weight_grads)
        qkv_sizes = [len(wq), len(wk), len(wv)]
        dwq, dwk, dwv = (None, None, None) if h is None else (joint_grad.T @ h).split(qkv_sizes)
        qkv_bias_grads = (
            (None, None, None) if bq is None else joint_grad.sum(dim=0).split(qkv_sizes)
        )
        return (
            dx, None, None, None, None,
            dnorm_x, dnorm_y, dwq, dwk, dwv, dwo, dwg, dwu, dwd, *(dnorms or (None, None)),
            *qkv_bias_grads, None if bo is None else dy.sum(dim=0),
            *((None, None) if bg is None else du.sum(dim=0).chunk(2)),
            None if bd is None else dz.sum(dim=0),
        )  # fmt: skip
