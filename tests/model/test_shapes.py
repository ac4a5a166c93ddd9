"""Named shapes: the published sizes, and random weights that follow from the seed."""

from __future__ import annotations

import math

import pytest
import torch

from counterpoise.config import ModelConfig
from counterpoise.errors import PoiseError
from counterpoise.model.load import EMBEDDED_FOLDER, load_policy
from counterpoise.model.shapes import SHAPES, random_model, shape_config

CPU = torch.device("cpu")
SMALL = {
    "model_type": "qwen3", "hidden_act": "silu", "tie_word_embeddings": True,
    "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 640,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parameters"),
    [  # what the model cards' own files hold, a tied unembedding counted once
        ("smollm2-135m", 134_515_008),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
    ],
)
def test_the_published_number_of_parameters(name: str, parameters: int) -> None:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape_config(f"shape:{name}"))
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_every_shape_holds_the_embedded_vocabulary() -> None:
    from transformers import AutoTokenizer

    size = len(AutoTokenizer.from_pretrained(EMBEDDED_FOLDER))
    assert all(sizes["vocab_size"] >= size for sizes in SHAPES.values())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "small", SMALL)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_shape_is_a_policy(dtype: str) -> None:
    policy = load_policy(ModelConfig(name="shape:small", device="cpu", dtype=dtype))
    assert policy.decoder.dtype == getattr(torch, dtype)
    assert policy.decoder.unembedding is policy.decoder.embedding.weight
    assert policy.decoder.head_dim == 32
    assert max(policy.encode("Ana has 3 pens.")) < 600
    std = float(policy.decoder.unembedding.detach().float().std())
    assert std == pytest.approx(0.02, rel=3 / math.sqrt(2 * 640 * 64))
    assert torch.equal(policy.decoder.norm.weight, torch.ones(64))


@pytest.mark.usefixtures("small")
def test_weights_follow_from_the_seed_and_angles_from_the_shape() -> None:
    one, same, other = (
        random_model(shape_config("shape:small"), CPU, torch.float32, seed) for seed in (0, 0, 1)
    )
    a, b, c = (torch.cat([p.flatten() for p in m.parameters()]) for m in (one, same, other))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    angles = 1e6 ** -(torch.arange(0, 32, 2) / 32)
    torch.testing.assert_close(one.model.rotary_emb.inv_freq, angles)


def test_an_unknown_shape_is_one_line() -> None:
    with pytest.raises(PoiseError, match=r"shape 'qwen3-0\.5b'.*qwen3-0\.6b"):
        load_policy(ModelConfig(name="shape:qwen3-0.5b"))
