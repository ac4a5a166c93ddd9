"""One forward pass over the weights of a transformers Llama, Qwen2 or Qwen3 model.

Sampler and trainer run this same code on the same parameter tensors, over a flat list of tokens
[N, D] without padding. How a token finds the tokens it may look at is the business of `attend`:

    attend(layer, q [N, H, d], k [N, K, d], v [N, K, d]) -> [N, H, d]      K key/value heads

`policy/attention.py` attends within packed prompts and responses (training, prefill);
`sample/cache.py` attends to a key/value cache (decoding).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from counterpoise.errors import PoiseError

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
ARCHITECTURES = ("llama", "qwen2", "qwen3")


class Decoder:
    """Reads a transformers causal language model; owns no weights."""

    def __init__(self, model: Any) -> None:  # transformers publishes no types
        config = model.config
        check_architecture(config)
        self.config = config
        self.embedding: nn.Embedding = model.model.embed_tokens
        self.layers: Any = model.model.layers
        self.norm: nn.Module = model.model.norm
        self.head: nn.Linear = model.lm_head
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.epsilon: float = config.rms_norm_eps
        self._rotary: nn.Module = model.model.rotary_emb
        self._angles: tuple[Tensor, Tensor] | None = None

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

    def __call__(self, tokens_N: Tensor, positions_N: Tensor, attend: Attend) -> Tensor:
        """Hidden states [N, D]: the input of the unembedding."""
        x = F.embedding(tokens_N, self.embedding.weight)
        cos, sin = self._rotation(positions_N)
        for index, layer in enumerate(self.layers):
            h = self._normed(x, layer.input_layernorm)
            x = x + self._attention(layer.self_attn, index, h, cos, sin, attend)
            h = self._normed(x, layer.post_attention_layernorm)
            mlp = layer.mlp
            x = x + mlp.down_proj(F.silu(mlp.gate_proj(h)) * mlp.up_proj(h))
        return self._normed(x, self.norm)

    def _attention(
        self, part: Any, index: int, h: Tensor, cos: Tensor, sin: Tensor, attend: Attend
    ) -> Tensor:
        q = part.q_proj(h).view(-1, self.heads, self.head_dim)
        k = part.k_proj(h).view(-1, self.kv_heads, self.head_dim)
        v = part.v_proj(h).view(-1, self.kv_heads, self.head_dim)
        if hasattr(part, "q_norm"):  # Qwen3 normalises queries and keys head by head
            q, k = self._normed(q, part.q_norm), self._normed(k, part.k_norm)
        mixed = attend(index, _rotate(q, cos, sin), _rotate(k, cos, sin), v)
        out: Tensor = part.o_proj(mixed.reshape(-1, self.heads * self.head_dim))
        return out

    def _normed(self, x: Tensor, norm: Any) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), norm.weight, self.epsilon)

    def reserve(self, length: int) -> None:
        """Make the rotary table long enough for positions below `length`; call before a pass."""
        if self._angles is not None and len(self._angles[0]) >= length:
            return
        longest = max(length, min(self.config.max_position_embeddings, 32768))
        where = torch.arange(longest, device=self.device)[None]
        with torch.no_grad():
            cos, sin = self._rotary(torch.empty(0, dtype=self.dtype, device=self.device), where)
        self._angles = (cos[0], sin[0])

    def _rotation(self, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [N, 1, d] from a table of the model's own rotary embedding."""
        if self._angles is None:
            self.reserve(1)
            assert self._angles is not None
        cos_L, sin_L = self._angles
        return cos_L[positions_N].unsqueeze(1), sin_L[positions_N].unsqueeze(1)


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
    if config.hidden_act != "silu":
        raise PoiseError(
            f"models with {config.hidden_act} activations are not supported: silu only"
        )


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in the half-split layout that these three architectures share."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin
