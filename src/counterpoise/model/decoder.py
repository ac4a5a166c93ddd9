"""One forward pass over the weights of a transformers Llama, Qwen2 or Qwen3 model.

Sampler and trainer run this same code on the same parameter tensors, over a flat list of tokens
[N, D] without padding. How a token finds the tokens it may look at is the business of `attend`:

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

AttendFunction = Callable[[int, Tensor, Tensor, Tensor], Tensor]
ARCHITECTURES = ("llama", "qwen2", "qwen3")
LENGTH_DEPENDENT_ROPE = (
    "dynamic",
    "longrope",
)  # angles that change with a sequence's length: no one table


class Decoder:
    """Reads a transformers causal language model; owns no weights, but lays some side by side."""

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
        self._angles: tuple[Tensor, Tensor] | None = None
        modules = self.embedding, self.layers, self.norm, self.head
        self._parameters = list(dict.fromkeys(p for part in modules for p in part.parameters()))
        self.num_parameters = sum(p.numel() for p in self._parameters)

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    @property
    def unembedding(self) -> Tensor:
        """W [V, D]; the embedding's own tensor where the model ties them."""
        return self.head.weight

    def __call__(
        self,
        tokens_N: Tensor,
        positions_N: Tensor,
        attend: AttendFunction,
        *,
        checkpoint: bool = False,
        embedded_N: Tensor | None = None,
        wanted_n: Tensor | None = None,
    ) -> Tensor:
        """Hidden states [N, D]: the input of the unembedding.

        With `checkpoint` the backward pass computes every layer again instead of keeping it;
        `embedded_N` [N, D] stands in for the embeddings of the tokens. `wanted_n`: only the hidden
        states at these places, [n, D]: of other tokens the last layer computes keys and values
        alone, and its `attend` is given the queries of these.
        """
        x = F.embedding(tokens_N, self.embedding.weight) if embedded_N is None else embedded_N
        if embedded_N is not None and not torch.is_grad_enabled():
            x = x.clone()  # layers add to it in place
        cos, sin = self._rotation(positions_N)
        for index in range(len(self.layers)):
            only = wanted_n if index == len(self.layers) - 1 else None
            if checkpoint:
                x = recompute(self._layer, index, x, cos, sin, attend, only, use_reentrant=False)
            else:
                x = self._layer(index, x, cos, sin, attend, only)
        return rms_norm(x, self.norm.weight, self.epsilon)

    def _layer(
        self,
        index: int,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        attend: AttendFunction,
        only_n: Tensor | None = None,
    ) -> Tensor:
        layer = self.layers[index]
        at = self._segments(x, attend) if only_n is None else None
        if at is not None:
            z: Tensor = FusedLayer.apply(x, cos, sin, at, self.shape, *layer_parameters(layer))
            return z
        H, K, d, epsilon = self.heads, self.kv_heads, self.head_dim, self.epsilon
        attention, mlp = layer.self_attn, layer.mlp
        h = rms_norm(x, layer.input_layernorm.weight, epsilon)
        qkv = joint_linear(h, (attention.q_proj, attention.k_proj, attention.v_proj))
        norms = None
        if self.config.model_type == "qwen3":  # normalises queries and keys head by head
            norms = attention.q_norm.weight, attention.k_norm.weight
        q, k, v = split_heads(qkv.view(-1, H + 2 * K, d), norms, cos, sin, H, K, epsilon)
        if only_n is not None:
            x, q = x.index_select(0, only_n), q.index_select(0, only_n)
        mixed = attend(index, q, k, v).reshape(-1, H * d)
        y = _added(x, attention.o_proj, mixed)
        m = rms_norm(y, layer.post_attention_layernorm.weight, epsilon)
        return _added(y, mlp.down_proj, apply_gate(joint_linear(m, (mlp.gate_proj, mlp.up_proj))))

    def _segments(self, x: Tensor, attend: AttendFunction) -> PackedSegments | None:
        """Where a layer written out takes over: for gradients, where flash attention can run."""
        able = torch.is_grad_enabled() and is_half_on_gpu(x) and supports_head_dim(self.head_dim)
        return attend.segments if able and isinstance(attend, PackedAttention) else None

    def reserve(self, length: int) -> None:
        """Make the rotary table long enough for positions below `length`; call before a pass."""
        if self._angles is not None and len(self._angles[0]) >= length:
            return
        longest = max(length, min(self.config.max_position_embeddings, 32768))
        where = torch.arange(longest, device=self.device)[None]
        with torch.no_grad():
            cos, sin = self._rotary(torch.empty(0, dtype=self.dtype, device=self.device), where)
        if cos.shape[-1] != self.head_dim:
            raise PoiseError(
                f"models that turn {cos.shape[-1]} of a head's {self.head_dim} numbers by their "
                "position are not supported: all of them only"
            )
        self._angles = (cos[0], sin[0])

    @property
    def rotary_table(self) -> tuple[Tensor, Tensor]:
        """cos and sin [L, d]: a table of the model's own rotary embedding."""
        if self._angles is None:
            self.reserve(1)
            assert self._angles is not None
        return self._angles

    @property
    def tensor_addresses(self) -> tuple[int, ...]:
        """Where what a pass reads lies in memory: captured work remembers addresses, not names."""
        return tuple(tensor.data_ptr() for tensor in (*self.rotary_table, *self._parameters))

    def _rotation(self, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [N, d]"""
        cos_L, sin_L = self.rotary_table
        return cos_L[positions_N], sin_L[positions_N]


def check_architecture(config: Any) -> None:
    """Refuse what this forward would compute wrongly, by the config alone."""
    if config.model_type not in ARCHITECTURES:
        raise PoiseError(
            f"{config.model_type} is not an architecture this engine runs: "
            f"choose a {', '.join(ARCHITECTURES)} model"
        )
    if getattr(config, "use_sliding_window", False):
        raise PoiseError(
            "models with sliding-window attention are not supported: full attention only"
        )
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in LENGTH_DEPENDENT_ROPE:
        raise PoiseError(
            f"models with {rope} rotary embedding are not supported: their angles follow the length"
        )
    if config.hidden_act != "silu":
        raise PoiseError(
            f"models with {config.hidden_act} activations are not supported: silu only"
        )


def _added(x: Tensor, layer: nn.Linear, y: Tensor) -> Tensor:
    """x + layer(y), the sum taken inside the product; where no gradient is taken, inside x."""
    if layer.bias is not None:
        x = x + layer.bias
    if torch.is_grad_enabled():
        return torch.addmm(x, y, layer.weight.T)
    return x.addmm_(y, layer.weight.T)
