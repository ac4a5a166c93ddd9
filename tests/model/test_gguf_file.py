"""model.name = FILE.gguf: the folder computes what the model behind the file does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model.gguf_by_hand import tiny_llama, write_gguf

from counterpoise.config import ModelConfig
from counterpoise.errors import PoiseError
from counterpoise.model import gguf_file, gguf_weights
from counterpoise.model.load import check_model_source, load_policy

pytest.importorskip("gguf", reason="the gguf package is not installed")


def on_cpu(path: Path) -> ModelConfig:
    return ModelConfig(name=str(path), device="cpu", dtype="float32")


def tiny_qwen(model_type: str, tied: bool = True) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(5)
    config = AutoConfig.for_model(
        model_type, vocab_size=260, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=128,
        rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        tie_word_embeddings=tied, initializer_range=0.3,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(".bias") or "_norm" in name:
                weight.uniform_(0.5, 1.5)
    return model


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
@torch.no_grad()
def test_every_architecture_computes_what_the_original_does(
    model_type: str, tmp_path: Path
) -> None:
    original = tiny_llama(tied=False) if model_type == "llama" else tiny_qwen(model_type)
    path = write_gguf(tmp_path / "tiny.gguf", original, pre="qwen2")
    policy = load_policy(on_cpu(path))
    assert policy.model.config.model_type == model_type
    ids = torch.arange(3, 40)[None]
    torch.testing.assert_close(policy.model(ids).logits, original(ids).logits, rtol=0, atol=0)
    assert policy.decode(policy.encode("5 pens")) == "5 pens"
    assert policy.notices[0] == "tiny.gguf: weights 100% F32, stored as float32"


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
@torch.no_grad()
def test_the_reader_of_transformers_gives_the_same_model(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Architectures that are not in the table take this way; these two can be compared."""
    original = tiny_llama(tied=True) if model_type == "llama" else tiny_qwen(model_type)
    path = write_gguf(tmp_path / "tiny.gguf", original, pre="qwen2", kind="Q8_0")
    ids = torch.arange(3, 40)[None]
    ours = load_policy(on_cpu(path)).model(ids).logits
    os.utime(path, ns=(1, 1))
    monkeypatch.setattr(gguf_file, "ARCHITECTURES", {})
    theirs = load_policy(on_cpu(path)).model(ids).logits
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-4)


def test_a_second_load_reuses_the_folder_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_qwen("qwen2"))
    folder = gguf_file.gguf_folder(path)
    assert folder == tmp_path / "tiny.gguf.counterpoise"
    convert = gguf_file.convert_gguf
    monkeypatch.setattr(gguf_file, "convert_gguf", None)  # a second conversion would fail
    assert gguf_file.gguf_folder(path) == folder
    monkeypatch.setattr(gguf_file, "convert_gguf", convert)
    write_gguf(path, tiny_qwen("qwen3"))
    os.utime(path, ns=(1, 1))
    assert gguf_file.find_converted(path) is None
    assert '"qwen3"' in (gguf_file.gguf_folder(path) / "config.json").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tiny.gguf", "tiny.gguf.counterpoise"]


def test_of_two_roundings_of_a_tied_matrix_the_finer_is_used(tmp_path: Path) -> None:
    model = tiny_qwen("qwen2", tied=True)
    path = write_gguf(tmp_path / "tiny.gguf", model, kind="Q4_0", output_kind="Q8_0")
    policy = load_policy(on_cpu(path))
    assert policy.model.config.tie_word_embeddings
    embedding = policy.model.get_input_embeddings().weight
    original = model.get_input_embeddings().weight
    # Q8_0 rounds to 1/127 of a block's largest value, half a level up or down; Q4_0 to 1/8.
    error = float((embedding - original).detach().abs().max() / original.detach().abs().max())
    assert error < 0.008
    assert policy.notices[0].endswith(
        "stored as bfloat16; what the quantisation lost does not come back; embedding and output "
        "layer are tied: both are output.weight (Q8_0), and token_embd.weight (Q4_0) is not used"
    )
    assert "% Q4_0 (4.5 bits), " in policy.notices[0]


def test_an_output_layer_of_its_own_stays(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_qwen("qwen3", tied=False), kind="Q8_0")
    policy = load_policy(on_cpu(path))
    assert not policy.model.config.tie_word_embeddings
    assert "tied" not in policy.notices[0]


@torch.no_grad()
def test_large_models_are_written_in_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader reads sharded folders, of this converter and of save_pretrained."""
    monkeypatch.setattr(gguf_file, "SHARD_BYTES", 40_000)
    original = tiny_qwen("qwen2")
    path = write_gguf(tmp_path / "tiny.gguf", original, pre="gpt-2")
    policy = load_policy(on_cpu(path))
    assert len(list(gguf_file.folder_beside(path).glob("model-*.safetensors"))) > 3
    ids = torch.arange(3, 40)[None]
    torch.testing.assert_close(policy.model(ids).logits, original(ids).logits, rtol=0, atol=0)
    sharded = tmp_path / "sharded"
    policy.model.save_pretrained(sharded, max_shard_size="60KB")
    policy.tokenizer.save_pretrained(sharded)
    assert len(list(sharded.glob("model-*.safetensors"))) > 1
    again = load_policy(on_cpu(sharded))
    torch.testing.assert_close(again.model(ids).logits, original(ids).logits, rtol=0, atol=0)
    next(sharded.glob("model-00002*")).unlink()
    with pytest.raises(PoiseError, match="cannot be loaded"):
        load_policy(on_cpu(sharded))


def test_the_factors_of_llama_3_become_its_rule() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        **gguf_weights.LLAMA3_RULE,
    }
    config = LlamaConfig(
        hidden_size=128, num_attention_heads=2, head_dim=64, max_position_embeddings=131072,
        rope_parameters=rope,
    )  # fmt: skip
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500000.0 ** -(np.arange(0, 64, 2) / 64)
    factors = gguf_weights.llama3_factors(500000.0, 64, 32.0)
    np.testing.assert_allclose(plain / scaled.numpy(), factors, rtol=1e-5)
    assert (factors.min(), factors.max()) == (1.0, 32.0)


def test_the_splits_are_those_of_the_families(tmp_path: Path) -> None:
    def pieces(pre: str, model: Any, text: str) -> list[str]:
        path = write_gguf(tmp_path / f"{pre}.gguf", model, pre=pre)
        tokenizer = load_policy(on_cpu(path)).tokenizer
        splitter = tokenizer.backend_tokenizer.pre_tokenizer
        return [piece for piece, _ in splitter.pre_tokenize_str(text)]

    assert pieces("qwen2", tiny_qwen("qwen2"), "It's 1234") == ["It", "'s", "Ġ", "1", "2", "3", "4"]
    assert pieces("llama-bpe", tiny_llama(tied=True), "It's 1234") == ["It", "'s", "Ġ", "123", "4"]


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PoiseError, match=r"no model 'models/x.gguf': no such file"):
        check_model_source("models/x.gguf")
    text = tmp_path / "text.gguf"
    text.write_text("no model")
    with pytest.raises(PoiseError, match="not a complete GGUF file"):
        load_policy(on_cpu(text))
    with pytest.raises(PoiseError, match=r"is missing; to use its GGUF file, name .*text"):
        check_model_source(str(tmp_path))
    path = write_gguf(tmp_path / "tiny.gguf", tiny_qwen("qwen2"), pre="a-new-one")
    with pytest.raises(PoiseError, match="scheme 'a-new-one' is not known"):
        load_policy(on_cpu(path))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(PoiseError, match="not a complete GGUF file"):
        load_policy(on_cpu(path))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["text.gguf", "tiny.gguf"]
