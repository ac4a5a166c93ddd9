"""`shape:NAME`: a published architecture with random weights, for benchmarks without a download.

All sizes are those of the published config.json, so time, memory and FLOP are those of the real
model; the text it generates is noise. Weights ~ N(0, 0.02^2), norms 1, biases 0, drawn on the
device in the requested dtype from a seed: nothing passes through float32 or the CPU. Prompts are
encoded by the embedded model's tokenizer, whose few ids every vocabulary here contains.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from counterpoise.errors import unknown_name

SHAPE_PREFIX = "shape:"
WEIGHT_STD = 0.02
QWEN2 = {"model_type": "qwen2", "hidden_act": "silu", "tie_word_embeddings": False}
LLAMA = {"model_type": "llama", "hidden_act": "silu", "tie_word_embeddings": True}
QWEN3 = {"model_type": "qwen3", "hidden_act": "silu", "tie_word_embeddings": True}
SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": LLAMA | {
        "hidden_size": 576, "num_hidden_layers": 30, "intermediate_size": 1536,
        "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49152,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100_000.0,
    },
    "qwen3-0.6b": QWEN3 | {
        "hidden_size": 1024, "num_hidden_layers": 28, "intermediate_size": 3072,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
    },
    "qwen3-1.7b": QWEN3 | {
        "hidden_size": 2048, "num_hidden_layers": 28, "intermediate_size": 6144,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
    },
    "qwen2.5-7b": QWEN2 | {
        "hidden_size": 3584, "num_hidden_layers": 28, "intermediate_size": 18944,
        "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
    },
}  # fmt: skip


def shape_config(model_name: str) -> Any:
    """The transformers config of `shape:NAME`."""
    from transformers import AutoConfig

    shape_name = model_name.removeprefix(SHAPE_PREFIX)
    if shape_name not in SHAPES:
        raise unknown_name("shape", shape_name, SHAPES)
    sizes = dict(SHAPES[shape_name])
    rope_parameters = {"rope_type": "default", "rope_theta": sizes.pop("rope_theta")}
    model_type = sizes.pop("model_type")
    return AutoConfig.for_model(
        model_type, **sizes, rope_parameters=rope_parameters, bos_token_id=None
    )


def random_model(config: Any, device: torch.device, dtype: torch.dtype, seed: int = 0) -> nn.Module:
    """A model of that config with random weights, created directly on the device."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.to_empty(device=device)
    model.tie_weights()  # `to_empty` gave both ends of a tie separate memory
    # The rotary embedding has no parameters: its buffers must be computed again.
    with torch.device(device):
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for parameter_name, weight in model.named_parameters():
            if parameter_name.endswith("norm.weight"):
                weight.fill_(1.0)
            elif parameter_name.endswith("bias"):
                weight.zero_()
            else:
                weight.normal_(0.0, WEIGHT_STD, generator=generator)
    return model
