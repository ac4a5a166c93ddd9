"""`model.name = "FILE.gguf"`: a quantised file, turned once into an ordinary model folder.

    weights     W = scale * q (+ minimum), block by block (the `gguf` package), stored in bfloat16;
                in float32 where the file's matrices are F32 or F16, which are more precise
    q and k     in Llama files the two halves of a rotated head are interleaved (a0 b0 a1 b1 ...);
                they are put back in the order of transformers (a0 a1 ... b0 b1 ...)
    head        a file may hold the output layer and the embedding of a model that ties them, each
                rounded in its own way. If they differ by rounding alone, the finer one is used for
                both
    RoPE        the frequency factors of Llama 3.1 are turned back into its scaling rule; others
                are refused

The folder is FILE.gguf.counterpoise, beside the file; where that place cannot be written, it is in
the user's cache. It is reused as long as the file's size and time of modification stay the same.
Architectures that are not in ARCHITECTURES are read by transformers.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoise.errors import PoiseError, first_line
from counterpoise.files import atomic_write, cannot_write
from counterpoise.model.gguf_tokenizer import read_tokenizer
from counterpoise.model.gguf_weights import (
    ARCHITECTURES,
    FLOAT_KINDS,
    ROPE_FACTORS,
    bits_per_weight,
    choose_embedding,
    open_gguf,
    read_config,
    read_field,
    read_weights,
    rename_tensor,
    storage_dtype,
)

CONVERSION_VERSION = 1  # a new conversion replaces folders of older ones
SUFFIX = ".gguf"
SUMMARY_FILE = "gguf.json"  # in the converted folder: where it comes from and what was lost
SHARD_BYTES = 2 << 30  # weights are written in files of about this size, to bound memory


def is_gguf(model_name: str) -> bool:
    """Whether a model's name is that of a GGUF file."""
    return model_name.endswith(SUFFIX)


def check_gguf(model_name: str) -> None:
    """Raise an error if the file is missing, is no GGUF file, or cannot be read here."""
    source = Path(model_name)
    if not source.is_file():
        raise PoiseError(f"no model '{model_name}': no such file; check model.name")
    with source.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise PoiseError(f"{model_name}: not a complete GGUF file: it does not begin as one")
    if importlib.util.find_spec("gguf") is None:
        raise PoiseError(f"{model_name} needs the gguf package: pip install 'counterpoise[gguf]'")


# -- the folder -----------------------------------------------------------------------------------


def gguf_folder(source: Path) -> Path:
    """The model folder of a GGUF file, created on first use."""
    check_gguf(str(source))
    if folder := find_converted(source):
        return folder
    folder = folder_beside(source)
    if not os.access(source.resolve().parent, os.W_OK):
        folder = cache_folder() / folder.name
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Replaces the folder of an earlier version of the file.
        with atomic_write(folder) as temporary:
            temporary.mkdir()
            convert_gguf(source, temporary)
    except OSError as fault:
        raise cannot_write(folder, fault) from fault
    return folder


def find_converted(source: Path) -> Path | None:
    """The folder of a file that was converted before and has not changed since."""
    identity = file_identity(source)
    for folder in (folder_beside(source), cache_folder() / folder_beside(source).name):
        summary = read_summary(folder)
        if summary and all(summary.get(key) == value for key, value in identity.items()):
            return folder
    return None


def folder_beside(source: Path) -> Path:
    resolved = source.resolve()
    return resolved.with_name(f"{resolved.name}.counterpoise")


def cache_folder() -> Path:
    """The cache folder: POISE_CACHE, else counterpoise/ in the user's cache folder."""
    if override := os.environ.get("POISE_CACHE"):
        return Path(override).expanduser()
    cache_home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache_home).expanduser() / "counterpoise"


def file_identity(source: Path) -> dict[str, int]:
    status = source.stat()
    return {
        "conversion": CONVERSION_VERSION,
        "file_bytes": status.st_size,
        "modified_ns": status.st_mtime_ns,
    }


def read_summary(folder: Path) -> dict[str, Any] | None:
    """Where a converted folder comes from and what was lost; None for any other folder."""
    try:
        summary = json.loads((folder / SUMMARY_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) else None


def describe_source(model_name: str) -> str | None:
    """One line about the quantised file behind a model's name; None if there is none."""
    folder = find_converted(Path(model_name)) if is_gguf(model_name) else Path(model_name)
    summary = read_summary(folder) if folder else None
    return str(summary["note"]) if summary and "note" in summary else None


# -- conversion -----------------------------------------------------------------------------------


def convert_gguf(source: Path, out: Path) -> None:
    """Write config.json, weights, tokenizer and a summary of the file into the folder `out`."""
    reader = open_gguf(source)
    architecture = ARCHITECTURES.get(read_field(reader, "general.architecture"))
    names = [tensor.name for tensor in reader.tensors]
    choice = ""
    if architecture and all(rename_tensor(name) or name == ROPE_FACTORS for name in names):
        is_tied, skipped, choice = choose_embedding(reader)
        dtype = storage_dtype(reader)
        config = read_config(reader, architecture, tied=is_tied, dtype=dtype)
        shapes = write_shards(read_weights(reader, architecture, skipped), out, dtype)
        check_weights(source, config, shapes)
        config.save_pretrained(out)
        read_tokenizer(reader, source).save_pretrained(out)
        write_generation_config(reader, out)
    else:
        dtype = convert_with_transformers(reader, source, out)
    summary = {
        "schema": 1,
        **file_identity(source),
        "source": str(source.resolve()),
        "note": describe_loss(reader, source, dtype) + choice,
    }
    (out / SUMMARY_FILE).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def write_shards(
    weights: Iterator[tuple[str, NDArray[np.float32]]], out: Path, dtype: torch.dtype
) -> dict[str, list[int]]:
    """Write the weights in files of bounded size; returns their shapes by name."""
    from safetensors.torch import save_file

    shapes: dict[str, list[int]] = {}
    files: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    total_bytes = 0

    def write() -> None:
        file_name = f"model-{len(set(files.values())) + 1:05d}.safetensors"
        save_file(shard, out / file_name, metadata={"format": "pt"})
        files.update(dict.fromkeys(shard, file_name))
        shard.clear()

    for weight_name, weight in weights:
        # The copy owns its memory: a view would keep the float32 values or the file's map alive.
        shard[weight_name] = torch.tensor(weight).to(dtype)
        shapes[weight_name] = list(weight.shape)
        total_bytes += weight.size * dtype.itemsize
        if sum(tensor.nbytes for tensor in shard.values()) > SHARD_BYTES:
            write()
    if shard:
        write()
    if set(files.values()) == {"model-00001.safetensors"}:
        (out / "model-00001.safetensors").rename(out / "model.safetensors")
    else:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": files}
        (out / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return shapes


def check_weights(source: Path, config: Any, shapes: dict[str, list[int]]) -> None:
    """Raise an error unless the weights are exactly those that the model has."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    expected = {name: list(weight.shape) for name, weight in model.state_dict().items()}
    if config.tie_word_embeddings:
        expected.pop("lm_head.weight")
    for name in sorted(expected.keys() | shapes.keys()):
        if shapes.get(name) != expected.get(name):
            raise PoiseError(
                f"{source} is not a {config.model_type} model as transformers builds it: {name} is "
                f"{shapes.get(name, 'absent')} in the file and {expected.get(name, 'absent')} in "
                "the model"
            )


def write_generation_config(reader: Any, out: Path) -> None:
    """Write the tokens that end a response: those the file names, and the padding token.

    The padding token never belongs to a response; in Qwen's files it is <|endoftext|>, which
    ends a text.
    """
    from transformers import GenerationConfig

    token_ids = [
        read_field(reader, f"tokenizer.ggml.{name}_token_id")
        for name in ("eos", "eot", "eom", "padding")
    ]
    ends = list(dict.fromkeys(int(token) for token in token_ids if token is not None))
    GenerationConfig(
        bos_token_id=read_field(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=ends,
        pad_token_id=read_field(reader, "tokenizer.ggml.padding_token_id"),
    ).save_pretrained(out)


def convert_with_transformers(reader: Any, source: Path, out: Path) -> torch.dtype:
    """Convert a file of another architecture by the reader of transformers."""
    from transformers import AutoModelForCausalLM

    name = read_field(reader, "general.architecture")
    # transformers leaves these out without a word, and the model would compute something else.
    if factors := [t.name for t in reader.tensors if t.name.startswith("rope_f")]:
        raise PoiseError(
            f"{source}: {name} with {factors[0]} is not read: use the original model's folder or "
            "hub id"
        )
    dtype = storage_dtype(reader)
    folder = source.resolve().parent
    try:
        model, loading_info = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=source.name, dtype=dtype, output_loading_info=True,
            trust_remote_code=False, local_files_only=True,
        )  # fmt: skip
        if missing := sorted(loading_info["missing_keys"]):
            raise PoiseError(f"{source}: transformers finds no {missing[0]} in this {name} file")
        # `save_pretrained` refuses a model that came from a GGUF file, though it is dequantised.
        config = model.config
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        config.dtype = dtype
        state = model.state_dict()
        if config.tie_word_embeddings:
            state.pop("lm_head.weight", None)
        weights = ((key, weight.float().numpy()) for key, weight in state.items())
        check_weights(source, config, write_shards(weights, out, dtype))
        config.save_pretrained(out)
        read_tokenizer(reader, source).save_pretrained(out)
        write_generation_config(reader, out)
    except (PoiseError, OSError):
        raise
    except Exception as fault:  # transformers, tokenizers and gguf raise errors of any type
        architecture_names = ", ".join(ARCHITECTURES)
        raise PoiseError(
            f"{source}: a GGUF file of architecture '{name}' is read neither here "
            f"({architecture_names}) nor by transformers: {first_line(fault)}"
        ) from fault
    return dtype


def describe_loss(reader: Any, source: Path, dtype: torch.dtype) -> str:
    """One line: how many bits the file's matrices have, and that what they lost stays lost."""
    matrices = [tensor for tensor in reader.tensors if len(tensor.shape) > 1]
    weights, bits = Counter[str](), {}
    for tensor in matrices:
        weights[tensor.tensor_type.name] += int(tensor.n_elements)
        bits[tensor.tensor_type.name] = bits_per_weight(tensor)
    total = sum(weights.values())
    dtype_name = str(dtype).removeprefix("torch.")
    kinds = ", ".join(
        f"{count / total:.0%} {kind}" + ("" if kind in FLOAT_KINDS else f" ({bits[kind]:.3g} bits)")
        for kind, count in weights.most_common()
    )
    if all(kind in FLOAT_KINDS for kind in weights):
        return f"{source.name}: weights {kinds}, stored as {dtype_name}"
    mean = sum(bits[kind] * count for kind, count in weights.items()) / total
    return (
        f"{source.name}: {mean:.2g} bits a weight ({kinds}), stored as {dtype_name}; what the "
        "quantisation lost does not come back"
    )
