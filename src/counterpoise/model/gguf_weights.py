"""Read weights and config of a GGUF file; `model/gguf_file.py` makes a model folder of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoise.errors import PoiseError, first_line

COMPARED_ROWS = 512  # rows that decide whether embedding and output layer are the same matrix
# |A - B| / |B| is below this for two quantisations of one matrix, and 1.4 for unrelated matrices.
LARGEST_ROUNDING = 0.5
FLOAT_KINDS = ("F32", "F16", "BF16")
LAYER_NAMES = {  # GGUF -> transformers, inside layer {i}
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_LEVEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",  # absent where it is tied to the embedding
}
ROPE_FACTORS = "rope_freqs.weight"
# The constants of the scaling rule of Llama 3.1 and later; the factor is read from the file.
LLAMA3_RULE = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@dataclass(frozen=True)
class Architecture:
    """An architecture of GGUF that differs from Llama by its name and few settings."""

    model_type: str  # of transformers
    class_name: str
    interleaved_heads: bool = False


ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", interleaved_heads=True),  # and Mistral
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM"),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM"),
}


def open_gguf(source: Path) -> Any:
    """A reader of the file, which must be complete and not one of several."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(source)
    except (ValueError, OSError, IndexError) as fault:
        raise PoiseError(f"{source}: not a complete GGUF file: {first_line(fault)}") from fault
    if read_field(reader, "split.count", 1) > 1:
        raise PoiseError(
            f"{source} is one of several files of a model: join them with "
            "llama-gguf-split --merge FIRST OUT, then name OUT"
        )
    return reader


def read_field(reader: Any, field_name: str, default: Any = None) -> Any:
    field = reader.fields.get(field_name)
    return default if field is None else field.contents()


def rename_tensor(name: str) -> str | None:
    """The name of a tensor in transformers; None if it is not known.

    Example:
        >>> rename_tensor("blk.7.attn_q.bias")
        'model.layers.7.self_attn.q_proj.bias'
    """
    if name in TOP_LEVEL_NAMES:
        return TOP_LEVEL_NAMES[name]
    prefix, _, rest = name.partition(".")
    layer, _, rest = rest.partition(".")
    layer_name, _, kind = rest.partition(".")
    if prefix != "blk" or layer_name not in LAYER_NAMES or kind not in ("weight", "bias"):
        return None
    return f"model.layers.{layer}.{LAYER_NAMES[layer_name]}.{kind}"


def read_weights(
    reader: Any, architecture: Architecture, skipped: str | None = None
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """All tensors in float32, one by one, with the names and layout of transformers.

    `skipped` is the coarser of embedding and output layer, where they are tied.
    """
    heads_by_tensor = {}
    if architecture.interleaved_heads:
        heads = read_field(reader, f"{architecture.model_type}.attention.head_count")
        key_heads = read_field(reader, f"{architecture.model_type}.attention.head_count_kv", heads)
        heads_by_tensor = {"attn_q": heads, "attn_k": key_heads}
    for tensor in reader.tensors:
        if tensor.name in (skipped, ROPE_FACTORS):
            continue
        weight = dequantize_tensor(tensor)
        weight_name = rename_tensor(tensor.name) or tensor.name
        if skipped and tensor.name == "output.weight":
            weight_name = TOP_LEVEL_NAMES["token_embd.weight"]
        layer_name = tensor.name.split(".")[-2]
        if layer_name in heads_by_tensor:
            weight = deinterleave_heads(weight, heads_by_tensor[layer_name])
        yield weight_name, weight


def dequantize_tensor(tensor: Any, rows: int | None = None) -> NDArray[np.float32]:
    """The tensor, or its first rows, in float32."""
    from gguf import dequantize

    try:
        weight = dequantize(tensor.data[:rows], tensor.tensor_type)
    except NotImplementedError as fault:
        raise PoiseError(
            f"the GGUF file stores {tensor.name} as {tensor.tensor_type.name}, which the gguf "
            "package cannot dequantise: choose a file of another quantisation, such as Q4_K_M"
        ) from fault
    return np.asarray(weight, dtype=np.float32)


def deinterleave_heads(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Reorder each head's rows from interleaved (a0 b0 a1 b1 ...) to halves (a0 a1 ... b0 b1 ...).

    Example:
        >>> deinterleave_heads(np.arange(4.0)[:, None], heads=1)[:, 0].tolist()
        [0.0, 2.0, 1.0, 3.0]
    """
    pairs_per_head = len(rows) // heads // 2
    return rows.reshape(heads, pairs_per_head, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def choose_embedding(reader: Any) -> tuple[bool, str | None, str]:
    """(tied?, the tensor that is left out, a phrase about the choice).

    GGUF does not say whether a model ties its output layer to its embedding. They are tied if the
    file has no output layer, or if the two are quantisations of the same matrix.
    """
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    embedding, output = tensors["token_embd.weight"], tensors.get("output.weight")
    if output is None:
        return True, None, ""
    if embedding.shape.tolist() != output.shape.tolist():
        return False, None, ""
    first, second = (dequantize_tensor(tensor, COMPARED_ROWS) for tensor in (embedding, output))
    difference = float(np.linalg.norm(first - second)) / (float(np.linalg.norm(second)) or 1.0)
    if difference > LARGEST_ROUNDING:
        return False, None, ""
    kept_matrix, skipped = output, embedding
    if bits_per_weight(embedding) > bits_per_weight(output):
        kept_matrix, skipped = embedding, output
    return (
        True,
        skipped.name,
        f"; embedding and output layer are tied: both are {kept_matrix.name} "
        f"({kept_matrix.tensor_type.name}), "
        f"and {skipped.name} ({skipped.tensor_type.name}) is not used",
    )


def bits_per_weight(tensor: Any) -> float:
    return 8 * int(tensor.n_bytes) / int(tensor.n_elements)


def storage_dtype(reader: Any) -> torch.dtype:
    """bfloat16, or float32 if the file has matrices with a longer significand."""
    kinds = {tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) > 1}
    return torch.float32 if kinds & {"F32", "F16"} else torch.bfloat16


def read_config(reader: Any, architecture: Architecture, *, tied: bool, dtype: torch.dtype) -> Any:
    """The transformers config; `tied`: the head shares the embedding's weight."""
    from transformers import AutoConfig

    def field(field_name: str, default: Any = None) -> Any:
        value = read_field(reader, f"{architecture.model_type}.{field_name}", default)
        if value is None:
            raise PoiseError(f"the GGUF file is incomplete: it has no field '{field_name}'")
        return value

    hidden, heads = field("embedding_length"), field("attention.head_count")
    head_size = field("attention.key_length", field("rope.dimension_count", hidden // heads))
    embedding = next(t for t in reader.tensors if t.name == "token_embd.weight")
    settings: dict[str, Any] = {
        "vocab_size": int(embedding.shape[-1]),  # GGUF lists the fastest axis first
        "hidden_size": hidden,
        "intermediate_size": field("feed_forward_length"),
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": field("attention.head_count_kv", heads),
        "head_dim": head_size,
        "max_position_embeddings": field("context_length"),
        # Stored as a float32: rounding restores the decimal number.
        "rms_norm_eps": round(field("attention.layer_norm_rms_epsilon"), 9),
        "rope_parameters": read_rope(reader, architecture, head_size),
    }
    if architecture.model_type != "qwen2":
        settings["attention_bias"] = any("attn_q.bias" in t.name for t in reader.tensors)
    token_ids = {
        f"{name}_token_id": read_field(reader, f"tokenizer.ggml.{gguf_name}_token_id")
        for name, gguf_name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    return AutoConfig.for_model(
        architecture.model_type,
        architectures=[architecture.class_name],
        dtype=str(dtype).removeprefix("torch."),
        tie_word_embeddings=tied,
        **settings,
        **token_ids,
    )


def read_rope(reader: Any, architecture: Architecture, head_size: int) -> dict[str, Any]:
    """The rotation of queries and keys, in the words of transformers."""
    prefix = f"{architecture.model_type}.rope"
    base = read_field(reader, f"{prefix}.freq_base", 10_000.0)
    scaling = read_field(reader, f"{prefix}.scaling.type", "none")
    if scaling == "linear":
        factor = read_field(reader, f"{prefix}.scaling.factor", 1.0)
        return {"rope_type": "linear", "rope_theta": base, "factor": factor}
    if scaling != "none":
        raise PoiseError(
            f"the GGUF file scales its rotary embedding by '{scaling}', which is not read: use the "
            "original model's folder or hub id"
        )
    factors = next((t for t in reader.tensors if t.name == ROPE_FACTORS), None)
    if factors is None:
        return {"rope_type": "default", "rope_theta": base}
    stored = dequantize_tensor(factors)
    factor = round(float(stored.max()), 3)
    if not np.allclose(stored, llama3_factors(base, head_size, factor), rtol=1e-3):
        raise PoiseError(
            "the GGUF file's rope_freqs do not follow Llama 3.1's rule, so its rotary embedding is "
            "not known: use the original model's folder or hub id"
        )
    return {"rope_type": "llama3", "rope_theta": base, "factor": factor, **LLAMA3_RULE}


def llama3_factors(base: float, head_size: int, factor: float) -> NDArray[np.float64]:
    """What each frequency is divided by: 1 for short waves, `factor` for long ones."""
    frequencies = base ** -(np.arange(0, head_size, 2) / head_size)
    waves_in_context = LLAMA3_RULE["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = LLAMA3_RULE["low_freq_factor"], LLAMA3_RULE["high_freq_factor"]
    smooth = np.clip((waves_in_context - low) / (high - low), 0.0, 1.0)
    factors: NDArray[np.float64] = 1 / ((1 - smooth) / factor + smooth)
    return factors
