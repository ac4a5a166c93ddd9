"""One forward pass over the weights of a transformers model: the fast path.

Sampler and trainer run this same code on the same parameter tensors, over a flat list of tokens
[N, D] without padding. The `attend` function decides which tokens a token attends to:

    attend(layer, q [N, H, d], k [N, K, d], v [N, K, d], window) -> [N, H, d]    K key/value heads

The scale of the scores is 1 / sqrt(d). A token attends to the last `window` tokens up to itself, or
to its whole past if `window` is None. `model/families.py` says what a model family needs.

`model/attention.py` attends within packed prompts and responses (training, prefill);
`sample/kv_cache.py` and, on a GPU, `sample/kv_slots.py` attend to stored keys and values
(decoding).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

from counterpoise.errors import PoiseError
from counterpoise.model.adapters import adapted_linear
from counterpoise.model.attention import PackedAttention
from counterpoise.model.families import (
    NO_ROTATION,
    SHARED_ROTATION,
    check_architecture,
    read_facts,
)
from counterpoise.model.flash import PackedSegments, supports_head_dim
from counterpoise.model.kernels import is_half_on_gpu
from counterpoise.model.layer import FusedLayer, LayerShape, layer_parameters
from counterpoise.model.layer_parts import (
    ACTIVATIONS,
    apply_gate,
    join_weights,
    joint_linear,
    rms_norm,
    rotate_leading,
    split_heads,
    wide_rms_norm,
)


class AttendFunction(Protocol):
    """Attention outputs from queries, keys and values; shapes are in the module's docstring."""

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None = None
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """The modules of one layer. To find them in transformers' modules takes microseconds each,
    which decoding would spend again for every token."""

    attention_norm: Any
    qkv: tuple[nn.Linear, nn.Linear, nn.Linear]
    head_norms: tuple[Any, Any] | None  # of queries and keys, in Qwen3
    output: nn.Linear
    mlp_norm: Any
    gate_and_up: tuple[nn.Linear, nn.Linear]
    down: nn.Linear

    @classmethod
    def from_module(cls, layer: Any) -> LlamaLayer:
        attention, mlp = layer.self_attn, layer.mlp
        has_head_norms = "q_norm" in attention._modules
        return cls(
            attention_norm=layer.input_layernorm,
            qkv=(attention.q_proj, attention.k_proj, attention.v_proj),
            head_norms=(attention.q_norm, attention.k_norm) if has_head_norms else None,
            output=attention.o_proj,
            mlp_norm=layer.post_attention_layernorm,
            gate_and_up=(mlp.gate_proj, mlp.up_proj),
            down=mlp.down_proj,
        )


class Decoder:
    """Runs a transformers causal language model with its own weights, some of them joined."""

    softcap = 0.0  # no family of this path caps its logits

    def __init__(self, model: Any, *, is_adapted: bool = False) -> None:
        """`model` is a causal language model of transformers, which publishes no types.

        `is_adapted`: some of its linear layers carry a LoRA adapter (`model/adapters.py`).
        """
        config = model.config
        check_architecture(config, model.device.type)
        self.config = config
        self.facts = read_facts(config)
        self.embedding: nn.Embedding = model.model.embed_tokens
        self.layers: Any = model.model.layers
        self.is_adapted = is_adapted
        if not self.facts.family.joined_projections and not is_adapted:
            join_weights(self.layers)
        self.norm: Any = model.model.norm
        self.head: nn.Linear = model.lm_head
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.epsilon: float = config.rms_norm_eps
        self.shape = LayerShape(self.heads, self.kv_heads, self.head_dim, self.epsilon)
        # Decided once for all passes: fused layers and kernels, or torch operations.
        self.has_llama_layer = self.facts.has_llama_layer and not is_adapted
        self.has_head_norms = self.facts.family.query_key_norm == "head"
        self._llama_layers = (
            [LlamaLayer.from_module(layer) for layer in self.layers] if self.has_llama_layer else []
        )
        self.can_fuse_layers = (
            self.has_llama_layer
            and supports_head_dim(self.head_dim)
            and not any(self.facts.windows)
        )
        self._rotary: nn.Module = model.model.rotary_emb
        self._rotary_tables: dict[str, tuple[Tensor, Tensor]] = {}
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
        rotations = {name: self._rotation(positions_N, name) for name in self.rotary_tables}
        for index, rotation in enumerate(self.facts.rotations):
            cos, sin = rotations[rotation]
            layer_outputs = output_indices_n if index == len(self.layers) - 1 else None
            if checkpoint:
                x = recompute(
                    self._layer, index, x, cos, sin, attend, layer_outputs, use_reentrant=False
                )
            else:
                x = self._layer(index, x, cos, sin, attend, layer_outputs)
        return self._normalise(x, self.norm)

    def embed(self, tokens_N: Tensor) -> Tensor:
        """The input of the first layer [N, D]: embeddings, scaled where the family does so."""
        # As in transformers, the embedding of the padding token gets no gradient.
        x = F.embedding(tokens_N, self.embedding.weight, self.embedding.padding_idx)
        scale = self.facts.embedding_scale
        # transformers rounds the scale to the dtype of the weights, so it is rounded here too.
        return x if scale == 1 else x * torch.tensor(scale, dtype=x.dtype).item()

    def _layer(
        self,
        index: int,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        attend: AttendFunction,
        output_indices_n: Tensor | None = None,
    ) -> Tensor:
        if not self.has_llama_layer:
            return self._torch_layer(index, x, cos, sin, attend, output_indices_n)
        segments = self._segments(x, attend) if output_indices_n is None else None
        if segments is not None:  # training on a GPU: one autograd node for the whole layer
            z: Tensor = FusedLayer.apply(
                x, cos, sin, segments, self.shape, *layer_parameters(self.layers[index])
            )
            return z
        H, K, d, epsilon = self.heads, self.kv_heads, self.head_dim, self.epsilon
        layer = self._llama_layers[index]
        h = rms_norm(x, layer.attention_norm.weight, epsilon)
        qkv = joint_linear(h, layer.qkv)
        head_norms = None
        if layer.head_norms is not None:
            q_norm, k_norm = layer.head_norms
            head_norms = q_norm.weight, k_norm.weight
        q, k, v = split_heads(qkv.view(-1, H + 2 * K, d), head_norms, cos, sin, H, K, epsilon)
        if output_indices_n is not None:  # keys and values are needed of all tokens
            x, q = x.index_select(0, output_indices_n), q.index_select(0, output_indices_n)
        mixed = attend(index, q, k, v, self.facts.windows[index]).reshape(-1, H * d)
        y = _add_linear(x, layer.output, mixed)
        m = rms_norm(y, layer.mlp_norm.weight, epsilon)
        gated = apply_gate(joint_linear(m, layer.gate_and_up))
        return _add_linear(y, layer.down, gated)

    def _torch_layer(
        self,
        index: int,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        attend: AttendFunction,
        output_indices_n: Tensor | None,
    ) -> Tensor:
        """A layer that is not Llama's, or has an adapter, in torch operations.

        Kernels and fused layers compute only Llama's layer, without an adapter.
        """
        layer, facts = self.layers[index], self.facts
        attention, mlp, norms = layer.self_attn, layer.mlp, facts.family.norms

        def norm(states: Tensor, name: str | None) -> Tensor:
            return states if name is None else self._normalise(states, getattr(layer, name))

        q, k, v = self._torch_heads(attention, norm(x, norms.before_attention), cos, sin)
        if output_indices_n is not None:  # keys and values are needed of all tokens
            x, q = x.index_select(0, output_indices_n), q.index_select(0, output_indices_n)
        mixed = attend(index, q, k, v, facts.windows[index]).reshape(len(q), -1)
        y = x + norm(adapted_linear(attention.o_proj, mixed), norms.after_attention)
        projections = (
            (mlp.gate_up_proj,) if facts.family.joined_projections else (mlp.gate_proj, mlp.up_proj)
        )
        m = norm(y, norms.before_mlp)
        gate, up = self._project(m, projections, 2 * (self.config.intermediate_size,))
        gated = ACTIVATIONS[facts.activation](gate) * up
        return y + norm(adapted_linear(mlp.down_proj, gated), norms.after_mlp)

    def _torch_heads(
        self, attention: Any, h: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q [N, H, d], k and v [N, K, d] of the layer's normalised input."""
        facts, d = self.facts, self.head_dim
        projections = (
            (attention.qkv_proj,)
            if facts.family.joined_projections
            else (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        widths = self.heads * d, self.kv_heads * d, self.kv_heads * d
        q, k, v = self._project(h, projections, widths)
        if facts.family.query_key_norm == "projection":
            q, k = self._normalise(q, attention.q_norm), self._normalise(k, attention.k_norm)
        q, k, v = (projected.unflatten(-1, (-1, d)) for projected in (q, k, v))
        if self.has_head_norms:
            q, k = self._normalise(q, attention.q_norm), self._normalise(k, attention.k_norm)
        q, k = rotate_leading(q, cos, sin), rotate_leading(k, cos, sin)
        # Every `attend` function divides scores by sqrt(d).
        return (q if facts.query_scale == 1 else q * facts.query_scale), k, v

    def _project(
        self, x: Tensor, linears: Sequence[nn.Linear], widths: Sequence[int]
    ) -> Sequence[Tensor]:
        """Outputs of these widths, by linear layers of their own or by one that joins them."""
        if self.is_adapted and len(linears) > 1:
            return [adapted_linear(linear, x) for linear in linears]
        joint = adapted_linear(linears[0], x) if self.is_adapted else joint_linear(x, linears)
        return joint.split(list(widths), dim=-1)

    def _normalise(self, x: Tensor, norm: Any) -> Tensor:
        """A norm of the model over the last axis; the kernel only where layers are Llama's."""
        if self.has_llama_layer:
            return rms_norm(x, norm.weight, self.epsilon)
        return wide_rms_norm(x, norm.weight, self.facts.family.norm_offset, self.epsilon)

    def _segments(self, x: Tensor, attend: AttendFunction) -> PackedSegments | None:
        """The packed segments if `FusedLayer` can run: with gradients and flash attention."""
        can_fuse = self.can_fuse_layers and torch.is_grad_enabled() and is_half_on_gpu(x)
        return attend.segments if can_fuse and isinstance(attend, PackedAttention) else None

    def reserve(self, length: int) -> None:
        """Extend the rotary tables to positions below `length`; call it before a pass."""
        if self._rotary_tables and len(next(iter(self._rotary_tables.values()))[0]) >= length:
            return
        # Growing moves the tables in memory and invalidates CUDA graphs, so they start long.
        table_length = max(length, min(self.config.max_position_embeddings, 32768))
        self._rotary_tables = {
            name: self._build_rotary_table(name, table_length)
            for name in dict.fromkeys(self.facts.rotations)
        }

    @torch.no_grad()
    def _build_rotary_table(self, name: str, table_length: int) -> tuple[Tensor, Tensor]:
        """cos and sin [L, d] of the model's own rotary embedding, or of zero angles."""
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        if name == NO_ROTATION:
            sin = like.new_zeros(table_length, self.head_dim)
            return torch.ones_like(sin), sin
        positions = torch.arange(table_length, device=self.device)[None]
        layer_type = () if name == SHARED_ROTATION else (name,)
        cos, sin = self._rotary(like, positions, *layer_type)
        if cos.shape[-1] != self.head_dim and not self.facts.family.partial_rotary:
            raise PoiseError(
                f"models that rotate only {cos.shape[-1]} of a head's {self.head_dim} numbers are "
                "not supported: choose one with full rotary embedding"
            )
        return cos[0], sin[0]

    @property
    def rotary_tables(self) -> dict[str, tuple[Tensor, Tensor]]:
        """cos and sin [L, d] for all reserved positions, by the names in `facts.rotations`."""
        if not self._rotary_tables:
            self.reserve(1)
        return self._rotary_tables

    @property
    def tensor_addresses(self) -> tuple[int, ...]:
        """Addresses of all tensors that a pass reads; a CUDA graph is valid only for these."""
        tables = [tensor for table in self.rotary_tables.values() for tensor in table]
        return tuple(tensor.data_ptr() for tensor in (*tables, *self._parameters))

    def _rotation(self, positions_N: Tensor, name: str = SHARED_ROTATION) -> tuple[Tensor, Tensor]:
        """cos and sin [N, d]"""
        cos_L, sin_L = self.rotary_tables[name]
        return cos_L[positions_N], sin_L[positions_N]


def _add_linear(residual: Tensor, linear: nn.Linear, inputs: Tensor) -> Tensor:
    """residual + linear(inputs), fused; without gradients it overwrites `residual`."""
    if linear.bias is not None:
        residual = residual + linear.bias
    if torch.is_grad_enabled():
        return torch.addmm(residual, inputs, linear.weight.T)
    return residual.addmm_(inputs, linear.weight.T)
