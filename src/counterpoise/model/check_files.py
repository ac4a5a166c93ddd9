"""Look at the files of a model folder before a library loads them.

A model is somebody else's data. Five things are refused here, because the libraries would run
code, wait or compute without an end, or answer nonsense:

    pipes and devices           reading one may never end
    pickled weights             a pickle can run code when it is read: only safetensors is loaded
    more layers than tensors    a layer has at least one; the library would first build them all
    sizes above all tensors'    the library would allocate them before it compares
    weights that are NaN        or infinite: every response would be noise, or an error in sampling
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from counterpoise.errors import PoiseError, first_line

SIZES = (
    "hidden_size", "intermediate_size", "vocab_size", "n_embd", "n_inner", "d_model", "ffn_dim",
)  # fmt: skip
LAYER_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
MOST_LAYERS = 10_000  # in a folder without weights, which serves only to estimate memory
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def check_weight_files(folder: str) -> None:
    """Raise an error if a model folder cannot be read safely; loads nothing."""
    path = Path(folder)
    if not path.is_dir():  # a name of the hub
        return
    for entry in path.iterdir():
        if entry.exists() and not (entry.is_file() or entry.is_dir()):
            raise PoiseError(f"{entry} is a pipe or a device, not a file: remove it")
    weight_files = sorted(path.glob("*.safetensors"))
    pickles = [file for pattern in PICKLES for file in sorted(path.glob(pattern))]
    if pickles and not weight_files:
        raise PoiseError(
            f"{pickles[0]} is a pickle, which can run code when it is read: load the model where "
            "you trust it, save it with save_pretrained, and name that folder"
        )
    shapes = [shape for file in weight_files for shape in _read_shapes(folder, file)]
    config = _read_config(path)
    layers = _largest_number(config, LAYER_COUNTS)
    if layers > (len(shapes) if weight_files else MOST_LAYERS):
        raise PoiseError(
            f"model '{folder}' cannot be loaded: config.json names {layers:,} layers, and the "
            f"weights are {len(shapes):,} tensors"
        )
    size, longest = _largest_number(config, SIZES), max((max(shape) for shape in shapes), default=0)
    if shapes and size > longest:
        raise PoiseError(
            f"model '{folder}' cannot be loaded: config.json names a size of {size:,}, and the "
            f"longest axis of its weights has {longest:,}"
        )


def _read_config(folder: Path) -> dict[str, Any]:
    """config.json; {} if it cannot be read: the library that loads it says what is wrong."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def _largest_number(config: dict[str, Any], names: Sequence[str]) -> int:
    return max((config[name] for name in names if isinstance(config.get(name), int)), default=0)


def _read_shapes(folder: str, file: Path) -> list[list[int]]:
    """The shapes of the tensors with an axis, from the file's header."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as tensors:
            shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as fault:
        raise PoiseError(
            f"model '{folder}' cannot be loaded: {file.name} is no complete safetensors file: "
            f"{first_line(fault)}"
        ) from fault
    return [shape for shape in shapes if shape]


def check_weights_finite(model: nn.Module, name: str) -> None:
    """Raise an error if a weight is NaN or infinite."""
    for weight_name, weight in model.named_parameters():
        # One sum is NaN or infinite if an element is, and takes no further memory.
        if not torch.isfinite(weight.detach().sum(dtype=torch.float32)):
            raise PoiseError(
                f"model '{name}' cannot be used: {weight_name} holds numbers that are not finite"
            )
