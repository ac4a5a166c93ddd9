"""One forward pass over the weights of a transformers Llama, Qwen2 or Qwen3 model.

Sampler and trainer run this same code on the same parameter tensors, over a flat list of tokens
[N, D] without padding. The `attend` function decides which tokens a token attends to:

    attend(layer, q [N, H, d], k [N, K, d], v [N, K, d]) -> [N, H, d]      K key/value heads

`model/attention.py` attends within packed prompts and responses (training, prefill);
`sample/kv_cache.py` and, on a GPU, `sample/kv_slots.py` attend to stored keys and values
(decoding).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

from counterpoise.errors import PoiseError
from counterpoise.model.attention import PackedAttention
from counterpoise.model.flash import PackedSegments, supports_head_dim
from counterpoise.model.kernels import is_half_on_gpu
from counterpoise.model.layer import FusedLayer, LayerShape, layer_parameters
from counterpoise.model.layer_parts import (
    apply_gate,
    join_weights,
    joint_linear,
    rms_norm,
    split_heads,
)

# (layer, q, k, v) -> attention outputs; shapes are in the module's docstring
AttendFunction = Callable[[int, Tensor, Tensor, Tensor], Tensor]
ARCHITECTURES = ("llama", "qwen2", "qwen3")
# Their angles change with a sequence's length, so one table cannot serve all sequences.
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


class Decoder:
    """Runs a transformers causal language model with its own weights, some of them joined."""

    softcap = 0.0  # no family of this path caps its logits

    def __init__(self, model: Any) -> None:  # transformers publishes no types
        config = model.config
        check_architecture(config)
        self.config = config
        self.embedding: nn.Embedding = model.model.embed_tokens
        self.layers: Any = model.model.layers
        join_weights(self.layers)
        self.norm: Any = model.model.norm
        self.head: nn.Linear = model.lm_head
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.epsilon: float = config.rms_norm_eps
        self.shape = LayerShape(self.heads, self.kv_heads, self.head_dim, self.epsilon)
        self._rotary: nn.Module = model.model.rotary_emb
        self._rotary_table: tuple[Tensor, Tensor] | None = None
        modules = self.embedding, self.layers, self.norm, self.head
        # A dict drops the second mention of a tied weight and keeps the order.
        self._parameters = list(
            dict.fromkeys(parameter for module in modules for parameter in module.parameters())
        )
        self.num_parameters = sum(parameter.numel() for parameter in self._parameters)

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    @property
    def unembedding(self) -> Tensor:
        """W [V, D]; the same tensor as the embedding if the model ties them."""
        return self.head.weight

    @property
    def max_positions(self) -> int:
        """The longest sequence that the model was made for."""
        positions: int = self.config.max_position_embeddings
        return positions

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        numbers = 2 * len(self.layers) * self.kv_heads * self.head_dim
        return numbers * self.unembedding.element_size()

    def embed(self, tokens_N: Tensor) -> Tensor:
        """The embeddings [N, D] that the first layer reads."""
        # As in transformers, the embedding of the padding token gets no gradient.
        return F.embedding(tokens_N, self.embedding.weight, self.embedding.padding_idx)

    def __call__(
        self,
        tokens_N: Tensor,
        positions_N: Tensor,
        attend: AttendFunction,
        *,
        checkpoint: bool = False,
        embedded_N: Tensor | None = None,
        output_indices_n: Tensor | None = None,
    ) -> Tensor:
        """Hidden states [N, D]: the input of the unembedding.

        `checkpoint`: the backward pass recomputes every layer instead of storing its activations.
        `embedded_N` [N, D] replaces the embeddings of the tokens. `output_indices_n` restricts the
        result to these tokens, [n, D]: for all others the last layer computes only keys and values,
        and its `attend` receives the queries of these n tokens alone.
        """
        x = self.embed(tokens_N) if embedded_N is None else embedded_N
        if embedded_N is not None and not torch.is_grad_enabled():
            x = x.clone()  # without gradients the layers add to it in place
        cos, sin = self._rotation(positions_N)
        for index in range(len(self.layers)):
            layer_outputs = output_indices_n if index == len(self.layers) - 1 else None
            if checkpoint:
                x = recompute(
                    self._layer, index, x, cos, sin, attend, layer_outputs, use_reentrant=False
                )
            else:
                x = self._layer(index, x, cos, sin, attend, layer_outputs)
        return rms_norm(x, self.norm.weight, self.epsilon)

    def _layer(
        self,
        index: int,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        attend: AttendFunction,
        output_indices_n: Tensor | None = None,
    ) -> Tensor:
        layer = self.layers[index]
        segments = self._segments(x, attend) if output_indices_n is None else None
        if segments is not None:  # training on a GPU: one autograd node for the whole layer
            z: Tensor = FusedLayer.apply(
                x, cos, sin, segments, self.shape, *layer_parameters(layer)
            )
            return z
        H, K, d, epsilon = self.heads, self.kv_heads, self.head_dim, self.epsilon
        attention, mlp = layer.self_attn, layer.mlp
        h = rms_norm(x, layer.input_layernorm.weight, epsilon)
        qkv = joint_linear(h, (attention.q_proj, attention.k_proj, attention.v_proj))
        head_norms = None
        if self.config.model_type == "qwen3":  # normalises queries and keys head by head
            head_norms = attention.q_norm.weight, attention.k_norm.weight
        q, k, v = split_heads(qkv.view(-1, H + 2 * K, d), head_norms, cos, sin, H, K, epsilon)
        if output_indices_n is not None:  # keys and values are needed of all tokens
            x, q = x.index_select(0, output_indices_n), q.index_select(0, output_indices_n)
        mixed = attend(index, q, k, v).reshape(-1, H * d)
        y = _add_linear(x, attention.o_proj, mixed)
        m = rms_norm(y, layer.post_attention_layernorm.weight, epsilon)
        gated = apply_gate(joint_linear(m, (mlp.gate_proj, mlp.up_proj)))
        return _add_linear(y, mlp.down_proj, gated)

    def _segments(self, x: Tensor, attend: AttendFunction) -> PackedSegments | None:
        """The packed segments if `FusedLayer` can run: with gradients and flash attention."""
        can_fuse = (
            torch.is_grad_enabled() and is_half_on_gpu(x) and supports_head_dim(self.head_dim)
        )
        return attend.segments if can_fuse and isinstance(attend, PackedAttention) else None

    def reserve(self, length: int) -> None:
        """Extend the rotary table to positions below `length`; call it before a pass."""
        if self._rotary_table is not None and len(self._rotary_table[0]) >= length:
            return
        # Growing moves the table in memory and invalidates CUDA graphs, so it starts long.
        table_length = max(length, min(self.config.max_position_embeddings, 32768))
        positions = torch.arange(table_length, device=self.device)[None]
        with torch.no_grad():
            cos, sin = self._rotary(torch.empty(0, dtype=self.dtype, device=self.device), positions)
        if cos.shape[-1] != self.head_dim:
            raise PoiseError(
                f"models that rotate only {cos.shape[-1]} of a head's {self.head_dim} numbers are "
                "not supported: choose one with full rotary embedding"
            )
        self._rotary_table = (cos[0], sin[0])

    @property
    def rotary_table(self) -> tuple[Tensor, Tensor]:
        """cos and sin [L, d] of the model's own rotary embedding for all reserved positions."""
        if self._rotary_table is None:
            self.reserve(1)
            assert self._rotary_table is not None
        return self._rotary_table

    @property
    def tensor_addresses(self) -> tuple[int, ...]:
        """Addresses of all tensors that a pass reads; a CUDA graph is valid only for these."""
        return tuple(tensor.data_ptr() for tensor in (*self.rotary_table, *self._parameters))

    def _rotation(self, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [N, d]"""
        cos_L, sin_L = self.rotary_table
        return cos_L[positions_N], sin_L[positions_N]


def fast_path_refusal(config: Any) -> str | None:
    """Why this decoder would compute the model wrongly, as a clause; None if it computes it."""
    if config.model_type not in ARCHITECTURES:
        return f"the fast path knows {', '.join(ARCHITECTURES)} models"
    if getattr(config, "use_sliding_window", False):
        return "it has sliding-window attention"
    rope_type = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope_type in LENGTH_DEPENDENT_ROPE:
        return f"the angles of its {rope_type} rotary embedding depend on the sequence length"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}"
    return None


def check_architecture(config: Any) -> None:
    """Raise PoiseError if the config describes a model that this decoder would compute wrongly."""
    if reason := fast_path_refusal(config):
        raise PoiseError(
            f"this {config.model_type} model cannot take the fast path, because {reason}: set "
            "model.path to auto or general"
        )


def _add_linear(residual: Tensor, linear: nn.Linear, inputs: Tensor) -> Tensor:
    """residual + linear(inputs), fused; without gradients it overwrites `residual`."""
    if linear.bias is not None:
        residual = residual + linear.bias
    if torch.is_grad_enabled():
        return torch.addmm(residual, inputs, linear.weight.T)
    return residual.addmm_(inputs, linear.weight.T)
