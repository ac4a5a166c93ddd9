"""Checkpoints: everything a run needs to continue as if it had never stopped.

    checkpoints/iteration_00010/
      model.safetensors  optimizer.safetensors  buffer.safetensors  state.json  options.toml
      manifest.json

A checkpoint is written to a temporary folder, flushed to the disk and renamed: complete or absent.
The manifest holds the SHA-256 of every file, so a damaged checkpoint is detected and the one before
it is used. options.toml is the run's config.toml when the checkpoint was saved; checkpoints of
version 0.1.0 lack it. Random state needs no saving: every choice is a function of the run's seed.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from counterpoise.errors import PoiseError
from counterpoise.files import atomic_write, make_folder, remove_leftovers
from counterpoise.store.folder import CHECKPOINT_PREFIX, CHECKPOINTS

SCHEMA = 1
MODEL_FILE = "model.safetensors"
OPTIONS_FILE = "options.toml"
DIGEST_ELEMENTS = 1024  # of each parameter
ADAPTER_A = ".lora_A."  # in PEFT's names of parameters
REQUIRED_FILES = (MODEL_FILE, "optimizer.safetensors", "buffer.safetensors", "state.json")


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The content of a checkpoint. `iteration` counts finished iterations."""

    iteration: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    buffer: dict[str, Tensor]
    state: dict[str, Any]  # plain values: buffer rows, counters
    options: str = ""  # every option of the run, as TOML; empty in checkpoints of version 0.1.0


def model_weights(model: nn.Module) -> dict[str, Tensor]:
    """Trained parameters by name; a tied tensor appears once."""
    return {
        name: parameter.detach().contiguous()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def set_model_weights(model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Copy weights from `model_weights` back into the model."""
    parameters = dict(model.named_parameters())
    for parameter_name, weights in saved.items():
        parameters[parameter_name].data.copy_(weights)


def check_model_weights(
    model: nn.Module, saved: Mapping[str, Tensor], checkpoint_name: object, model_name: str
) -> None:
    """Raise unless `saved` are weights of this model: the same parameters, of the same shapes."""
    shapes = {name: weights.shape for name, weights in model_weights(model).items()}
    if shapes != {name: weights.shape for name, weights in saved.items()}:
        raise PoiseError(
            f"{checkpoint_name} is not a checkpoint of the model '{model_name}' as it is now: its "
            "parameters have other names or shapes; restore the model that the run began with"
        )


def initial_digest(model: nn.Module) -> str:
    """A short digest of a model as it was loaded: "float32 5e9c1a77".

    It covers the beginning of every parameter, which is read in no time and differs after any
    training. LoRA's A matrices are left out, because a new adapter draws them at random; its B
    matrices, which start at 0, are covered.
    """
    parameters = dict(model.named_parameters())
    crc = 0
    for name, parameter in sorted(parameters.items()):
        if ADAPTER_A in name:
            continue
        beginning = parameter.detach().flatten()[:DIGEST_ELEMENTS].cpu().view(torch.uint8)
        crc = zlib.crc32(name.encode() + beginning.numpy().tobytes(), crc)
    dtype = str(next(iter(parameters.values())).dtype).removeprefix("torch.")
    return f"{dtype} {crc:08x}"


def load_checkpoint_weights(model: nn.Module, name: str, path: Path) -> None:
    """Load the weights of a checkpoint; `model` is the run's initial model, called `name`."""
    if not path.is_dir():
        raise PoiseError(f"{path} does not exist: the checkpoint was moved or removed")
    if damage := find_damage(path, (MODEL_FILE,)):
        raise PoiseError(f"{path} is damaged: {damage}")
    try:
        weights = load_file(path / MODEL_FILE)
    except (OSError, SafetensorError) as fault:
        raise PoiseError(f"{path} cannot be read: {fault}") from fault
    check_model_weights(model, weights, path, name)
    set_model_weights(model, weights)


def save(folder: Path, checkpoint: Checkpoint, keep: int) -> None:
    """Write a checkpoint, then remove all older ones except the newest `keep` - 1."""
    make_folder(folder)
    # A process that was killed while saving leaves its temporary folder behind.
    remove_leftovers(folder, f"{CHECKPOINT_PREFIX}*")
    with atomic_write(folder / folder_name(checkpoint.iteration)) as temporary:
        temporary.mkdir()
        for component in ("model", "optimizer", "buffer"):
            save_file(getattr(checkpoint, component), temporary / f"{component}.safetensors")
        state = {"schema": SCHEMA, "iteration": checkpoint.iteration, **checkpoint.state}
        (temporary / "state.json").write_text(json.dumps(state), encoding="utf-8")
        if checkpoint.options:
            (temporary / OPTIONS_FILE).write_text(checkpoint.options, encoding="utf-8")
        manifest = {path.name: _hash_file(path) for path in sorted(temporary.iterdir())}
        (temporary / "manifest.json").write_text(json.dumps({"schema": SCHEMA, "sha256": manifest}))
    remove_superseded(folder, checkpoint.iteration, keep)


def remove_superseded(folder: Path, iteration: int, keep: int) -> None:
    """Keep the checkpoint of `iteration` and the `keep` - 1 before it.

    Checkpoints of later iterations stay but do not count among the `keep`: they are damaged,
    because the run would have resumed from them otherwise, and a damaged checkpoint must not cause
    a usable one to be removed.
    """
    older_checkpoints = [
        path for path in list_checkpoints(folder) if iteration_of(path) < iteration
    ]
    for path in older_checkpoints[: max(0, len(older_checkpoints) - (keep - 1))]:
        shutil.rmtree(path)


def folder_name(iteration: int) -> str:
    return f"{CHECKPOINT_PREFIX}{iteration:05d}"


def run_of_checkpoint(path: Path) -> Path | None:
    """The run folder that a checkpoint belongs to; None if `path` is not a checkpoint."""
    path = path.resolve()
    is_checkpoint = path.parent.name == CHECKPOINTS and (path / MODEL_FILE).is_file()
    return path.parents[1] if is_checkpoint else None


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders, oldest first, without unfinished ones (whose names start with a dot)."""
    candidates = [
        path
        for path in folder.glob(f"{CHECKPOINT_PREFIX}*")
        if path.name.removeprefix(CHECKPOINT_PREFIX).isdecimal()
    ]
    return sorted((path for path in candidates if path.is_dir()), key=iteration_of)


def iteration_of(path: Path) -> int:
    return int(path.name.removeprefix(CHECKPOINT_PREFIX))


def newest_intact_options(folder: Path) -> Path | None:
    """The newest options.toml whose digest is right; weights are not checked, to save time."""
    for path in reversed(list_checkpoints(folder)):
        try:
            digests = json.loads((path / "manifest.json").read_text())["sha256"]
            if digests[OPTIONS_FILE] == _hash_file(path / OPTIONS_FILE):
                return path / OPTIONS_FILE
        # Damaged, or of version 0.1.0, which stored no options: try the one before it.
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def load_newest(folder: Path, notify: Callable[[str], None]) -> Checkpoint | None:
    """Load the newest intact checkpoint; `notify` gets a message about each damaged one."""
    checkpoints = list_checkpoints(folder)
    while checkpoints:
        path = checkpoints.pop()
        if damage := find_damage(path):
            next_attempt = "; trying the one before it" if checkpoints else ""
            notify(f"checkpoint {path.name} is damaged ({damage}){next_attempt}")
            continue
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        tensors = {
            component: load_file(path / f"{component}.safetensors")
            for component in ("model", "optimizer", "buffer")
        }
        options_file = path / OPTIONS_FILE
        options_text = options_file.read_text(encoding="utf-8") if options_file.is_file() else ""
        return Checkpoint(
            iteration=state["iteration"], state=state, options=options_text, **tensors
        )
    return None


def find_damage(path: Path, files: Sequence[str] | None = None) -> str:
    """Why a checkpoint, or some `files` of it, cannot be used; "" if it can."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        digests: dict[str, str] = manifest["sha256"]
        if missing_names := sorted(set(REQUIRED_FILES) - set(digests)):
            return f"manifest.json does not list {missing_names[0]}"
        if manifest["schema"] != SCHEMA:
            return f"schema {manifest['schema']}, this version reads {SCHEMA}"
        expected_digests = [(name, digests[name]) for name in files or digests]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        return f"manifest.json cannot be read: {fault}"
    for file_name, expected_digest in expected_digests:
        try:
            if not (path / file_name).is_file():
                return f"{file_name} is missing"
            if _hash_file(path / file_name) != expected_digest:
                return f"{file_name} has changed"
        except (OSError, ValueError) as fault:  # ValueError: a name with a null character
            return f"{file_name} cannot be read: {fault}"
    return ""


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
