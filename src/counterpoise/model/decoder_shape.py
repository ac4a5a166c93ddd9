"""The sizes of a decoder that its memory depends on, from config.json or a published shape.

No weights are loaded and nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError, first_line
from counterpoise.model.adapters import ALL_LINEAR

LinearSizes = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The sizes of a decoder that memory depends on."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    positions: int  # longest sequence that it was trained for
    fused: bool = True  # whether a GPU runs its layers by `model/layer.py`
    # Set only if the layers do not fit the formulas below; otherwise the formulas are used.
    counted_parameters: int = 0
    counted_linears: LinearSizes = ()

    @property
    def linears(self) -> LinearSizes:
        """(name, inputs + outputs) of every linear layer but the output layer."""
        if self.counted_linears:
            return self.counted_linears
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        sizes = {
            "q_proj": queries, "k_proj": keys, "v_proj": keys, "o_proj": queries,
            "gate_proj": self.intermediate, "up_proj": self.intermediate,
            "down_proj": self.intermediate,
        }  # fmt: skip
        return self.layers * tuple((name, self.hidden + size) for name, size in sizes.items())

    def adapter_parameters(self, rank: int, targets: Sequence[str]) -> int:
        """The parameters of a LoRA adapter, A [rank, in] and B [out, rank] of each layer."""
        return rank * sum(
            size for name, size in self.linears if list(targets) == [ALL_LINEAR] or name in targets
        )

    @property
    def parameters(self) -> int:
        if self.counted_parameters:
            return self.counted_parameters
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.layers * layer + embeddings + self.hidden


# Published shapes of the paper's models, so that a dry run needs no download.
KNOWN_SHAPES = {
    "Qwen/Qwen2.5-Math-7B": DecoderShape(3584, 28, 28, 4, 128, 18944, 152064, False, 4096),
    "Qwen/Qwen3-1.7B-Base": DecoderShape(2048, 28, 16, 8, 128, 6144, 151936, True, 32768),
    "Qwen/Qwen3-4B-Base": DecoderShape(2560, 36, 32, 8, 128, 9728, 151936, True, 32768),
}


def find_shape(
    model_name: str, forward_path: str = "auto", device_type: str = "cpu"
) -> DecoderShape | None:
    """A model's shape: from the table above, or from its config.json in a folder or in the cache of
    Hugging Face; None if it is in none of them.

    With `forward_path="fast"` (`model.path`), a model that is read from config.json and has no fast
    path on a device of this type raises an error.
    """
    if model_name in KNOWN_SHAPES:
        return KNOWN_SHAPES[model_name]
    from counterpoise.model.families import fast_path_refusal, read_facts
    from counterpoise.model.general import UNLIMITED_POSITIONS
    from counterpoise.model.shapes import SHAPE_PREFIX, shape_config

    if model_name == "smollm2":
        model_name = f"{SHAPE_PREFIX}smollm2-135m"
    model_config = (
        shape_config(model_name)
        if model_name.startswith(SHAPE_PREFIX)
        else _load_model_config(model_name, forward_path, device_type)
    )
    if model_config is None:
        return None
    text_config = model_config.get_text_config()
    is_fast = fast_path_refusal(model_config, device_type) is None
    is_llama_like = is_fast and read_facts(model_config).has_llama_layer
    hidden = text_config.hidden_size
    heads = getattr(text_config, "num_attention_heads", None) or 1  # Mamba has no attention
    return DecoderShape(
        hidden=hidden,
        layers=text_config.num_hidden_layers,
        heads=heads,
        kv_heads=getattr(text_config, "num_key_value_heads", None) or heads,
        head_dim=getattr(text_config, "head_dim", None) or hidden // heads,
        intermediate=getattr(text_config, "intermediate_size", None) or 4 * hidden,
        vocabulary=text_config.vocab_size,
        tied=model_config.tie_word_embeddings,
        positions=getattr(text_config, "max_position_embeddings", None) or UNLIMITED_POSITIONS,
        fused=is_llama_like,
        **({} if is_llama_like else count_on_meta_device(model_config)),
    )


def count_on_meta_device(model_config: Any) -> dict[str, Any]:
    """The fields `counted_*` of a DecoderShape, from a model on torch's meta device.

    A tensor on that device has a shape and no memory.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(model_config)
    linears = [
        (name.rpartition(".")[2], sum(layer.weight.shape))
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear | Conv1D)
        and layer is not model.get_output_embeddings()
    ]
    return {
        "counted_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "counted_linears": tuple(linears),
    }


def _load_model_config(model_name: str, forward_path: str, device_type: str) -> Any:
    """The model's configuration; None if it is neither in a folder nor in Hugging Face's cache."""
    from huggingface_hub import try_to_load_from_cache
    from transformers import AutoConfig

    from counterpoise.model.check_files import check_weight_files
    from counterpoise.model.families import check_architecture
    from counterpoise.model.gguf_file import find_converted, is_gguf
    from counterpoise.model.load import EMBEDDED_FOLDER, FAST_PATH, HUB_ID

    model_folder = EMBEDDED_FOLDER if model_name == "embedded" else Path(model_name)
    if is_gguf(model_name) and model_folder.is_file():
        # Reading the file itself takes half a minute; its folder exists after the first use.
        model_folder = find_converted(model_folder) or model_folder
    elif not model_folder.exists() and HUB_ID.fullmatch(model_name):
        cached_file = try_to_load_from_cache(model_name, "config.json")
        if isinstance(cached_file, str):
            model_folder = Path(cached_file).parent
    if not (model_folder / "config.json").is_file():
        return None
    check_weight_files(str(model_folder))
    try:
        config = AutoConfig.from_pretrained(model_folder, trust_remote_code=False)
    except Exception as fault:  # transformers raises many types
        raise PoiseError(f"{model_folder / 'config.json'}: {first_line(fault)}") from fault
    if forward_path == FAST_PATH:
        check_architecture(config, device_type)
    return config
