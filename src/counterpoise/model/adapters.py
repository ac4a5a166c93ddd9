"""LoRA: train a small addition to frozen weights, by PEFT.

    y = W x + (alpha / rank) B A x        W frozen, A [rank, in] and B [out, rank] trained, B = 0 at
                                          the start

Sampler and trainer apply the same two products; B A is never added to W, so nothing is rounded
away. On the fast path they are computed in the model's precision: A and B are stored in float32 and
rounded for the product, as the weights of full training are. Checkpoints and the stored model hold
the adapter alone; `model.name` accepts that folder, and so does PEFT.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from counterpoise.config import ModelConfig
from counterpoise.errors import PoiseError, first_line
from counterpoise.model.check_files import check_weight_files, check_weights_finite

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_SEED = 0  # of A: every run of a model starts from the same adapter
ALL_LINEAR = "all-linear"  # PEFT's name for every linear layer but the output layer


def add_adapter(model: nn.Module, config: ModelConfig, base: str) -> Any:
    """The model with a new adapter; all of its own weights are frozen. `base` is their source."""
    peft = _import_peft()
    targets = config.lora_targets
    lora = peft.LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha or 2 * config.lora_rank,
        target_modules=ALL_LINEAR if targets == [ALL_LINEAR] else targets,
        lora_dropout=0.0,  # the policy that is trained is the policy that was sampled
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
    )
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            # Harmless: GPT-2's transposed layers, and tied embeddings, which check_adapter refuses.
            warnings.simplefilter("ignore", UserWarning)
            torch.manual_seed(ADAPTER_SEED)
            adapted = peft.get_peft_model(model, lora)
    except ValueError as fault:
        raise PoiseError(f"model.lora_targets={targets}: {first_line(fault)}") from fault
    return adapted


def load_adapter(model: nn.Module, folder: str) -> Any:
    """The model with the adapter of a folder, ready to be trained further."""
    peft = _import_peft()
    check_weight_files(folder)
    try:
        # Where weights are missing, PEFT warns and goes on with random ones.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            adapted = peft.PeftModel.from_pretrained(model, folder, is_trainable=True)
    except Exception as fault:  # PEFT, safetensors and torch raise errors of any type
        raise PoiseError(f"the adapter {folder} cannot be loaded: {first_line(fault)}") from fault
    if any("missing adapter keys" in str(warning.message) for warning in caught):
        raise PoiseError(f"the adapter {folder} cannot be loaded: its file lacks weights")
    check_weights_finite(adapted, folder)
    return adapted


def find_base(folder: str) -> str | None:
    """The model that the adapter in a folder was trained for; None if it holds no adapter."""
    path = Path(folder) / ADAPTER_CONFIG
    if not path.is_file():
        return None
    try:
        base = json.loads(path.read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise PoiseError(f"{path} cannot be read: {first_line(fault)}") from fault
    if not isinstance(base, str) or not base:
        raise PoiseError(f"{path} does not name its base model: set base_model_name_or_path in it")
    return base


def is_adapted(model: Any) -> bool:
    """Whether the model carries an adapter of PEFT."""
    return hasattr(model, "peft_config")


def base_model(model: Any) -> Any:
    """The transformers model, whose layers apply the adapter if there is one."""
    return model.get_base_model() if is_adapted(model) else model


def adapted_linear(linear: Any, x: Tensor) -> Tensor:
    """A linear layer's outputs [N, out] with its adapter, if it has one; x is [N, in].

    PEFT's own forward pass converts x and the outputs to float32, which takes longer than both of
    the adapter's products together.
    """
    # Variants such as DoRA, and merged or disabled adapters, are left to PEFT's forward pass.
    is_plain = hasattr(linear, "lora_A") and not (
        linear.merged or linear.lora_variant or linear.disable_adapters
    )
    outputs: Tensor = linear.base_layer(x) if is_plain else linear(x)
    for name in linear.active_adapters if is_plain else ():
        if name in linear.lora_A:
            down, up = linear.lora_A[name], linear.lora_B[name]
            inner_Nr = F.linear(x, down.weight.to(x.dtype)) * linear.scaling[name]
            outputs = torch.addmm(outputs, inner_Nr, up.weight.to(x.dtype).T)
            if up.bias is not None:  # PEFT's lora_bias
                outputs = outputs + linear.scaling[name] * up.bias.to(x.dtype)
    return outputs


def check_adapter(adapted: Any) -> None:
    """Raise an error unless the adapter is LoRA, and on neither the embedding nor the output layer.

    The weights of those two are read without calling the layer, which would skip the adapter.
    """
    kinds = {str(config.peft_type.value) for config in adapted.peft_config.values()}
    if kinds != {"LORA"}:
        raise PoiseError(f"adapters of the kind {', '.join(sorted(kinds))} are not read: use LoRA")
    model = base_model(adapted)
    for layer in (model.get_output_embeddings(), model.get_input_embeddings()):
        # PEFT wraps a layer that it adapts, or that it trains beside the adapter.
        if type(layer).__module__.startswith("peft."):
            raise PoiseError(
                "an adapter on the output layer or the embedding is not supported: leave it out of "
                "model.lora_targets"
            )


def _import_peft() -> Any:
    try:
        import peft
    except ImportError as fault:
        raise PoiseError("LoRA needs PEFT: pip install 'counterpoise[lora]'") from fault
    return peft
