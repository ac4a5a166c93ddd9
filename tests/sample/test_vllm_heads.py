"""Heads filled up with zeros: Qwen3's attention, written out, gives the same numbers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from counterpoise.errors import PoiseError
from counterpoise.sample.vllm_heads import (
    CPU_HEAD_WIDTHS,
    supported_head_width,
    widen_config,
    widen_weight,
)

HEADS, KV_HEADS, HIDDEN, T, EPSILON = 4, 2, 24, 7, 1e-6


def attention(x: Tensor, w: dict[str, Tensor], width: int, rotated: int) -> Tensor:
    """As vLLM computes it: norms over the width, the first `rotated` numbers of a head rotated."""
    q = (x @ w["q_proj.weight"].T + w["q_proj.bias"]).view(T, HEADS, width)
    k = (x @ w["k_proj.weight"].T + w["k_proj.bias"]).view(T, KV_HEADS, width)
    v = (x @ w["v_proj.weight"].T + w["v_proj.bias"]).view(T, KV_HEADS, width)
    q, k = norm(q, w["q_norm.weight"]), norm(k, w["k_norm.weight"])
    q, k = rotate(q, rotated), rotate(k, rotated)
    mixed = []
    for head in range(HEADS):
        shared = head // (HEADS // KV_HEADS)
        scores = q[:, head] @ k[:, shared].T * width**-0.5
        scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
        mixed.append(scores.softmax(-1) @ v[:, shared])
    return torch.cat(mixed, dim=1) @ w["o_proj.weight"].T


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * weight


def rotate(x: Tensor, rotated: int) -> Tensor:
    half = rotated // 2
    angles = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(half) / half)
    cos, sin = angles.cos()[:, None].to(x.dtype), angles.sin()[:, None].to(x.dtype)
    a, b, rest = x[..., :half], x[..., half:rotated], x[..., rotated:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)


@pytest.mark.parametrize(("d", "D"), [(40, 64), (16, 32), (72, 80), (32, 32)])
def test_the_same_attention(d: int, D: int) -> None:
    torch.manual_seed(0)
    shapes = {
        "q_proj.weight": (HEADS * d, HIDDEN), "q_proj.bias": (HEADS * d,),
        "k_proj.weight": (KV_HEADS * d, HIDDEN), "k_proj.bias": (KV_HEADS * d,),
        "v_proj.weight": (KV_HEADS * d, HIDDEN), "v_proj.bias": (KV_HEADS * d,),
        "q_norm.weight": (d,), "k_norm.weight": (d,), "o_proj.weight": (HIDDEN, HEADS * d),
    }  # fmt: skip
    w = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    x = torch.randn(T, HIDDEN, dtype=torch.float64)
    wide = {
        name: widen_weight(f"layers.3.self_attn.{name}", tensor, d, D) for name, tensor in w.items()
    }
    assert wide["o_proj.weight"].shape == (HIDDEN, HEADS * D)
    torch.testing.assert_close(
        attention(x, wide, D, d), attention(x, w, d, d), rtol=1e-6, atol=1e-6
    )


def test_other_weights_stay() -> None:
    weight = torch.randn(8, 8)
    for name in (
        "model.embed_tokens.weight",
        "model.layers.0.mlp.up_proj.weight",
        "lm_head.weight",
    ):
        assert widen_weight(name, weight, 40, 64) is weight


def test_exactly_the_first_numbers_are_rotated() -> None:
    """vLLM rounds width * factor down; no product may fall below d."""
    for D in CPU_HEAD_WIDTHS:
        for d in range(2, D, 2):
            config = SimpleNamespace(head_dim=d, rope_parameters={"rope_theta": 10000.0})
            widen_config(config, d, D)
            assert config.head_dim == D
            factor = float(config.rope_parameters["partial_rotary_factor"])
            assert int(D * factor) == d
            assert 0 < factor <= 1
            assert config.rope_parameters["rope_theta"] == 10000.0


def test_which_width() -> None:
    assert supported_head_width(40, "cpu", "qwen3") == 64
    assert supported_head_width(64, "cpu", "llama") == 64
    assert supported_head_width(40, "cuda", "qwen3") == 40
    with pytest.raises(PoiseError, match=r"llama heads of 40 on a CPU: set sample\.engine=native"):
        supported_head_width(40, "cpu", "llama")
