"""Which models are judged: a label for tables, and a digest that knows one set of weights again.

A model is what `model.name` takes, or the folder of a run, whose trained model is meant, or one of
the run's checkpoints. A folder is known by the SHA-256 of its weights, a hub id or a random shape
by its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from counterpoise.config import ModelConfig
from counterpoise.errors import PoiseError, first_line
from counterpoise.model.load import EMBEDDED, HUB_ID, Policy, find_folder, load_policy, quiet
from counterpoise.model.shapes import PREFIX, shape_config
from counterpoise.model.templates import AUTO
from counterpoise.store import checkpoint
from counterpoise.store.folder import CHECKPOINTS, RunFolder, is_run


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Example: ModelSource("mine", "out/mine/model", base="out/mine/model", digest="5f0c3a...")"""

    label: str
    name: str  # as given, or the model inside the run that was given
    base: str  # what is loaded; a checkpoint is the run's first model with other weights
    digest: str
    template: str = AUTO  # how its run asked it


def resolve_models(names: Sequence[str]) -> list[ModelSource]:
    """In the order given; a model that is named twice is an error."""
    found = [_place(name) for name in names]
    if twice := sorted({name for name in found if found.count(name) > 1}):
        raise PoiseError(f"model '{twice[0]}' is named twice")
    labels = _labels(found)
    return [
        ModelSource(label, name, _base(name), _digest(name), _template(name))
        for label, name in zip(labels, found, strict=True)
    ]


def load_model(source: ModelSource, device: str, dtype: str) -> Policy:
    policy = load_policy(ModelConfig(name=source.base, device=device, dtype=dtype))
    if source.base != source.name:
        checkpoint.take_weights(policy.model, policy.name, Path(source.name))
    return policy


def tokenizer_and_context(source: ModelSource) -> tuple[Any, int]:
    """What a prompt needs to know of a model before its weights are loaded."""
    from transformers import AutoConfig, AutoTokenizer

    quiet()
    try:
        if source.base.startswith(PREFIX):
            config, where = shape_config(source.base), str(EMBEDDED)
        else:
            where = find_folder(source.base)
            config = AutoConfig.from_pretrained(where, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False)
    except PoiseError:
        raise
    except Exception as fault:  # transformers and tokenizers raise as they please
        said = first_line(fault)
        raise PoiseError(f"model '{source.name}' cannot be loaded: {said}") from fault
    return tokenizer, int(config.max_position_embeddings)


def _place(name: str) -> str:
    """The model inside a run's folder; any other name as it is, if something is there."""
    path = Path(name)
    if is_run(path):
        if not (path / "model" / "config.json").is_file():
            raise PoiseError(
                f"{name} is a run without a model: it has not ended, or store.model was false"
            )
        return str(path / "model")
    ours = name in ("embedded", "smollm2") or name.startswith(PREFIX)
    if not ours and not path.exists() and not HUB_ID.fullmatch(name):
        raise PoiseError(
            f"no model '{name}': no such folder; give 'embedded', 'smollm2', a folder, a run, or a "
            "hub id like Qwen/Qwen3-0.6B"
        )
    if path.is_dir() and not checkpoint.run_of(path) and not (path / "config.json").is_file():
        raise PoiseError(f"{name} holds no model: config.json is missing")
    return name


def _base(name: str) -> str:
    run = checkpoint.run_of(Path(name))
    return RunFolder.open(run).config().model.name if run else name


def _template(name: str) -> str:
    """What the run that made a model had as `model.template`."""
    path = Path(name).resolve()
    run = checkpoint.run_of(path)
    if run is None and path.name == "model" and is_run(path.parent):
        run = path.parent
    return RunFolder.open(run).config().model.template if run else AUTO


def _labels(names: Sequence[str]) -> list[str]:
    """Short and different: the last part of a path (a run's folder, not its model/).

    Example:
        >>> _labels(["out/a/model", "out/a/checkpoints/iteration_00010", "embedded"])
        ['a', 'a-iteration_00010', 'embedded']
    """
    labels: list[str] = []
    for name in names:
        skipped = ("model", CHECKPOINTS, "/")
        parts = [part for part in Path(name).parts if part not in skipped] or ["model"]
        label = parts[-1].replace(":", "-")
        if (label in labels or CHECKPOINTS in Path(name).parts) and len(parts) > 1:
            label = f"{parts[-2]}-{label}"
        base, number = label, 1
        while label in labels:
            number += 1
            label = f"{base}-{number}"
        labels.append(label)
    return labels


def _digest(name: str) -> str:
    folder = Path(find_folder(name))
    wanted = checkpoint.MODEL if checkpoint.run_of(folder) else "*.safetensors"
    files = sorted(folder.glob(wanted)) if folder.is_dir() else []
    if not files:
        return name
    whole = sha256()
    for path in files:
        with path.open("rb") as file:
            whole.update(file_digest(file, "sha256").digest())
    return whole.hexdigest()[:16]
