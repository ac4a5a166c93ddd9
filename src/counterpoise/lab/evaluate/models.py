"""The models of an evaluation: a label for tables, and a digest that identifies the weights.

A model is anything that `model.name` accepts, the folder of a run (its trained model is used), or a
checkpoint of a run. A folder is identified by the SHA-256 of its weights, a hub id or a random
shape by its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from counterpoise.config import ModelConfig
from counterpoise.errors import PoiseError, first_line
from counterpoise.model.adapters import find_base
from counterpoise.model.check_files import check_weight_files
from counterpoise.model.general import UNLIMITED_POSITIONS
from counterpoise.model.load import (
    EMBEDDED_FOLDER,
    HUB_ID,
    Policy,
    find_model_folder,
    holds_model,
    load_policy,
    silence_libraries,
)
from counterpoise.model.shapes import SHAPE_PREFIX, shape_config
from counterpoise.model.templates import AUTO
from counterpoise.store import checkpoint
from counterpoise.store.folder import CHECKPOINTS, RunFolder, is_run


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model to evaluate.

    Example:
        ModelSource("mine", "out/mine/model", base="out/mine/model", digest="5f0c3a...")
    """

    label: str
    name: str  # as given, or the model inside the given run
    # The model to load; for a checkpoint, the run's initial model, which then gets its weights.
    base: str
    digest: str
    template: str = AUTO  # prompt template of the run that trained it


def resolve_models(names: Sequence[str]) -> list[ModelSource]:
    """Resolve the models in the order given; naming a model twice is an error."""
    resolved = [_locate_model(name) for name in names]
    if duplicates := sorted({name for name in resolved if resolved.count(name) > 1}):
        raise PoiseError(f"model '{duplicates[0]}' is named twice")
    labels = _labels(resolved)
    return [
        ModelSource(label, name, _base(name), _digest(name), _template(name))
        for label, name in zip(labels, resolved, strict=True)
    ]


def load_model(source: ModelSource, device: str, dtype: str) -> Policy:
    # Any model can apply `boxed`. The prompts are encoded already, with the template of --template:
    # a chat template that fails must not stop an evaluation that does not use it.
    config = ModelConfig(template="boxed")
    if run := checkpoint.run_of_checkpoint(Path(source.name)):
        # A checkpoint of a LoRA run holds an adapter: the model must have one to put it into.
        config = replace(RunFolder.open(run).read_config().model, template="boxed")
    policy = load_policy(replace(config, name=source.base, device=device, dtype=dtype))
    if source.base != source.name:
        checkpoint.load_checkpoint_weights(policy.model, policy.name, Path(source.name))
    return policy


def tokenizer_and_context(source: ModelSource) -> tuple[Any, int]:
    """The tokenizer and the context length, read before any weights are loaded."""
    from transformers import AutoConfig, AutoTokenizer

    silence_libraries()
    try:
        if source.base.startswith(SHAPE_PREFIX):
            config, model_folder = shape_config(source.base), str(EMBEDDED_FOLDER)
        else:
            folder = find_model_folder(source.base)
            # The model that an adapter was trained for has its config and, as in load_policy, its
            # tokenizer.
            adapter_base = find_base(folder)
            model_folder = find_model_folder(adapter_base) if adapter_base else folder
            check_weight_files(model_folder)
            config = AutoConfig.from_pretrained(model_folder, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(model_folder, trust_remote_code=False)
    except PoiseError:
        raise
    except Exception as error:  # transformers and tokenizers raise many types of exceptions
        reason = first_line(error)
        raise PoiseError(f"model '{source.name}' cannot be loaded: {reason}") from error
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    return tokenizer, int(positions or UNLIMITED_POSITIONS)


def _locate_model(name: str) -> str:
    """The model inside a run's folder; any other name unchanged, after checking that it exists."""
    path = Path(name)
    if is_run(path):
        if not holds_model(path / "model"):
            checkpoints = checkpoint.list_checkpoints(path / CHECKPOINTS)
            # A run that finishes with store.model=false removes its checkpoints.
            remedy = (
                f"name one of its checkpoints instead, such as {checkpoints[-1]}"
                if checkpoints
                else "it has no checkpoint either, so train it with store.model=true"
            )
            raise PoiseError(
                f"{name} is a run without a model: it has not finished, or store.model was false; "
                f"{remedy}"
            )
        return str(path / "model")
    is_builtin = name in ("embedded", "smollm2") or name.startswith(SHAPE_PREFIX)
    if not is_builtin and not path.exists() and not HUB_ID.fullmatch(name):
        raise PoiseError(
            f"no model '{name}': no such folder; give 'embedded', 'smollm2', a folder, a run, or a "
            "hub id like Qwen/Qwen3-0.6B"
        )
    if path.is_dir() and not checkpoint.run_of_checkpoint(path) and not holds_model(path):
        raise PoiseError(f"{name} holds no model: config.json is missing")
    return name


def _base(name: str) -> str:
    run = checkpoint.run_of_checkpoint(Path(name))
    return RunFolder.open(run).read_config().model.name if run else name


def _template(name: str) -> str:
    """The option `model.template` of the run that trained the model."""
    path = Path(name).resolve()
    run = checkpoint.run_of_checkpoint(path)
    if run is None and path.name == "model" and is_run(path.parent):
        run = path.parent
    return RunFolder.open(run).read_config().model.template if run else AUTO


def _labels(names: Sequence[str]) -> list[str]:
    """Short distinct labels: the last part of a path (a run's folder, not its model/).

    Example:
        >>> _labels(["out/a/model", "out/a/checkpoints/iteration_00010", "embedded"])
        ['a', 'a-iteration_00010', 'embedded']
    """
    labels: list[str] = []
    for name in names:
        # These path components do not distinguish models.
        uninformative = ("model", CHECKPOINTS, "/")
        components = [
            component for component in Path(name).parts if component not in uninformative
        ] or ["model"]
        label = components[-1].replace(":", "-")
        if (label in labels or CHECKPOINTS in Path(name).parts) and len(components) > 1:
            label = f"{components[-2]}-{label}"
        # Labels become folder names, so equal ones get a number.
        plain_label, number = label, 1
        while label in labels:
            number += 1
            label = f"{plain_label}-{number}"
        labels.append(label)
    return labels


def _digest(name: str) -> str:
    folder = Path(find_model_folder(name))
    pattern = checkpoint.MODEL_FILE
    if not checkpoint.run_of_checkpoint(folder):
        pattern = "*.safetensors"
        check_weight_files(str(folder))  # before one of them is read to its end
    files = sorted(folder.glob(pattern)) if folder.is_dir() else []
    # A hub id or a random shape has no files here; its name identifies it.
    if not files:
        return name
    hasher = sha256()
    for path in files:
        with path.open("rb") as file:
            hasher.update(file_digest(file, "sha256").digest())
    return hasher.hexdigest()[:16]
