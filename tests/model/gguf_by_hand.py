"""A second reading of GGUF, from the format's definition alone: numpy and struct, no library.

    file     "GGUF", version, #tensors, #fields | fields | tensor table | padding | data
    Q8_0     32 weights in 34 bytes: f16 d, 32 x int8 q         w = d q
    Q4_1     32 weights in 20 bytes: f16 d, f16 m, 16 bytes     w = d q + m
             byte i holds q_i in its low and q_{i+16} in its high four bits

Tensor sizes are listed fastest axis first, so a weight of [rows, columns] reads "columns rows".
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counterpoise.model import gguf_weights

SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY = 8, 9
F32, Q4_1, Q8_0 = 0, 3, 8


class Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, form: str) -> Any:
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def text(self) -> str:
        size = self.take("Q")
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            inner, count = self.take("I"), self.take("Q")
            return [self.value(inner) for _ in range(count)]
        return self.take(SCALARS[kind])


def read_by_hand(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(fields, tensors in float32 as stored: llama.cpp's row order)."""
    data = path.read_bytes()
    cursor = Cursor(data)
    assert data[:4] == b"GGUF"
    cursor.at = 8
    num_tensors, num_fields = cursor.take("Q"), cursor.take("Q")
    fields = {}
    for _ in range(num_fields):
        name = cursor.text()
        fields[name] = cursor.value(cursor.take("I"))
    table = []
    for _ in range(num_tensors):
        name = cursor.text()
        sizes = [cursor.take("Q") for _ in range(cursor.take("I"))]
        table.append((name, sizes[::-1], cursor.take("I"), cursor.take("Q")))
    align = fields.get("general.alignment", 32)
    start = -(-cursor.at // align) * align
    return fields, {
        name: weights(data, start + offset, shape, kind) for name, shape, kind, offset in table
    }


def weights(data: bytes, at: int, shape: list[int], kind: int) -> np.ndarray:
    count = int(np.prod(shape))
    if kind == F32:
        return np.frombuffer(data, "<f4", count, at).reshape(shape)
    size = {Q4_1: 20, Q8_0: 34}[kind]
    blocks = np.frombuffer(data, np.uint8, count // 32 * size, at).reshape(-1, size)
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    if kind == Q8_0:
        return (scale * blocks[:, 2:].copy().view(np.int8)).astype(np.float32).reshape(shape)
    minimum = blocks[:, 2:4].copy().view("<f2").astype(np.float32)
    low, high = blocks[:, 4:] & 15, blocks[:, 4:] >> 4
    levels = np.concatenate((low, high), axis=1).astype(np.float32)
    return (scale * levels + minimum).reshape(shape)


# -- a tiny model written the way llama.cpp writes one -------------------------------------------


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Row by row what llama.cpp does to q and k: half a head and the other half take turns."""
    size = len(rows) // heads
    order = [h * size + i + half for h in range(heads) for i in range(size // 2)
             for half in (0, size // 2)]  # fmt: skip
    return rows[order]


def tiny_llama(tied: bool) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=260, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=128,
        rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2, pad_token_id=2,
        initializer_range=0.3,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():  # to what the folder can hold exactly
            weight.copy_(weight.to(torch.bfloat16))
    return model


def write_gguf(
    path: Path, model: Any, pre: str = "smollm", *, kind: str = "F32", output_kind: str = ""
) -> Path:
    """A GGUF file; `kind`: of its matrices; `output_kind`: of a second head, though tied."""
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    from tokenizers import pre_tokenizers

    c, architecture = model.config, model.config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in {
        "block_count": c.num_hidden_layers, "context_length": c.max_position_embeddings,
        "embedding_length": c.hidden_size, "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_attention_heads, "vocab_size": c.vocab_size,
        "attention.head_count_kv": c.num_key_value_heads, "attention.key_length": head_size(c),
    }.items():  # fmt: skip
        writer.add_uint32(f"{architecture}.{name}", value)
    writer.add_float32(f"{architecture}.rope.freq_base", c.rope_parameters["rope_theta"])
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", c.rms_norm_eps)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(special + sorted(pre_tokenizers.ByteLevel.alphabet()) + ["ĠĠ"])
    writer.add_token_types([3] * 3 + [1] * 257)
    writer.add_token_merges(["Ġ Ġ"])
    for name, value in (("bos", 1), ("eos", 2), ("unknown", 0), ("padding", 2)):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", value)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}<|im_start|>")
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings and not output_kind:
            continue
        rows = weight.numpy()
        if "q_proj" in name and architecture == "llama":
            rows = interleaved(rows, c.num_attention_heads)
        if "k_proj" in name and architecture == "llama":
            rows = interleaved(rows, c.num_key_value_heads)
        wanted = output_kind if name == "lm_head.weight" and output_kind else kind
        stored = gguf.GGMLQuantizationType[wanted if rows.ndim > 1 else "F32"]
        data = gguf.quantize(np.ascontiguousarray(rows), stored)
        writer.add_tensor(gguf_name(name), data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def head_size(config: Any) -> int:
    return getattr(config, "head_dim", 0) or config.hidden_size // config.num_attention_heads


def gguf_name(name: str) -> str:
    top = {theirs: ours for ours, theirs in gguf_weights.TOP_LEVEL_NAMES.items()}
    if name in top:
        return top[name]
    _, _, layer, *middle, last = name.split(".")
    short = next(
        ours for ours, theirs in gguf_weights.LAYER_NAMES.items() if theirs == ".".join(middle)
    )
    return f"blk.{layer}.{short}.{last}"
