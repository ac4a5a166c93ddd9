"""Tiny random models of many families, to check that each trains here as it does elsewhere.

Sizes are the smallest that exercise a family's peculiarities: sliding windows shorter than the
sequences, several key/value heads, several experts, layers of both kinds where a family mixes them.
"""

from __future__ import annotations

from typing import Any

import torch

COMMON_SIZES: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.3,
}  # fmt: skip
WINDOW = {"sliding_window": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GEMMA = WINDOW | {"head_dim": 16, "query_pre_attn_scalar": 16}
LINEAR_ATTENTION = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}  # fmt: skip
MIXED_LAYERS = ("full_attention", "conv")
# Fields that the config of a published model without attention does not have.
NO_ATTENTION = {
    "num_attention_heads": None, "num_key_value_heads": None, "max_position_embeddings": None,
}  # fmt: skip

# model_type of transformers -> what differs from the common sizes; None: the field is left out
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": EXPERTS | {"head_dim": 16, "decoder_sparse_step": 1},
    "qwen3_5_text": LINEAR_ATTENTION | {"head_dim": 16},
    "gemma2": GEMMA | {"final_logit_softcapping": 5.0},
    "gemma3_text": GEMMA,
    "mistral": WINDOW | {"head_dim": 16},
    "phi3": WINDOW,
    "phi": {},
    "olmo2": {},
    "smollm3": {},
    "gpt2": {},
    "granite": {"logits_scaling": 3.0, "attention_multiplier": 0.3, "residual_multiplier": 0.5},
    "cohere": {"logit_scale": 0.25},
    "gpt_oss": WINDOW | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "lfm2": {"layer_types": 2 * [*MIXED_LAYERS], "block_auto_adjust_ff_dim": False},
    "mamba": NO_ATTENTION | {"state_size": 8},
    "granitemoehybrid": {
        "layer_types": 2 * ["mamba", "attention"], "num_local_experts": 4, "num_experts_per_tok": 2,
        "mamba_n_heads": 4, "mamba_d_head": 24, "mamba_d_state": 8, "mamba_n_groups": 1,
        "mamba_chunk_size": 8, "shared_intermediate_size": 32, "position_embedding_type": "rope",
    },
}  # fmt: skip


def tiny_model(family: str, *, vocabulary: int, end_token: int, pad_token: int) -> Any:
    """A random model of the family, in float32; the same one at every call."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = COMMON_SIZES | FAMILIES[family]
    config = AutoConfig.for_model(
        family,
        **{name: size for name, size in sizes.items() if size is not None},
        vocab_size=vocabulary,
        eos_token_id=end_token,
        pad_token_id=pad_token,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).float().eval()
