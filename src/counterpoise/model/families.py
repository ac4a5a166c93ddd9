"""What each model family needs from the forward pass of `model/decoder.py`, the fast path.

With norms that some families have and others do not, every layer computes

    x = x + norm(W_o attention(q, k, v))       q, k, v = heads(W_qkv norm(x))
    x = x + norm(W_d (act(W_g m) * W_u m))     m = norm(x)

A `Family` says which norms there are, how heads are normalised and rotated, and where transformers'
config holds the rest. The defaults are Llama's, so an entry lists only what differs. A new family
is one entry in `FAMILIES` and one line in tests/model/test_families.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from counterpoise.errors import PoiseError
from counterpoise.model.layer_parts import ACTIVATIONS

# Their angles change with a sequence's length, so one table cannot serve all sequences.
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")

# Which rotary table a layer uses: the only one of the model, none, or that of its layer type.
SHARED_ROTATION, NO_ROTATION = "shared", "none"


class NormNames(NamedTuple):
    """The names of a layer's norms in transformers; None where the family has no norm."""

    before_attention: str | None
    after_attention: str | None
    before_mlp: str | None
    after_mlp: str | None


NORMS_BEFORE = NormNames("input_layernorm", None, "post_attention_layernorm", None)
NORMS_AFTER = NormNames(None, "post_attention_layernorm", None, "post_feedforward_layernorm")
NORMS_AROUND = NormNames(
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def no_windows(config: Any) -> tuple[int | None, ...]:
    """Every layer attends to the whole past."""
    return (None,) * config.num_hidden_layers


def windows_everywhere(config: Any) -> tuple[int | None, ...]:
    """Every layer has the config's sliding window, if it names one."""
    return (config.sliding_window,) * config.num_hidden_layers


def windows_by_layer_type(config: Any) -> tuple[int | None, ...]:
    """Layers of type `sliding_attention` have the window."""
    return tuple(
        config.sliding_window if layer_type == "sliding_attention" else None
        for layer_type in config.layer_types
    )


def shared_rotation(config: Any) -> tuple[str, ...]:
    """All layers rotate by the same angles."""
    return (SHARED_ROTATION,) * config.num_hidden_layers


def rotation_by_layer_type(config: Any) -> tuple[str, ...]:
    """Local and global layers have angles of their own."""
    return tuple(config.layer_types)


def rotation_where_listed(config: Any) -> tuple[str, ...]:
    """`no_rope_layers` holds 1 for layers that rotate, despite its name, and 0 for the others."""
    return tuple(
        SHARED_ROTATION if rotates else NO_ROTATION
        for rotates in config.no_rope_layers[: config.num_hidden_layers]
    )


def unscaled(config: Any) -> float:
    """No scale."""
    return 1.0


def root_of_hidden_size(config: Any) -> float:
    """Gemma multiplies embeddings by sqrt(D)."""
    return float(config.hidden_size**0.5)


def query_scale_of_gemma(config: Any) -> float:
    """sqrt(d / query_pre_attn_scalar): Gemma has that scalar under the root instead of d."""
    return float((config.head_dim / config.query_pre_attn_scalar) ** 0.5)


@dataclass(frozen=True, slots=True)
class Family:
    """How the layers of a model family differ from Llama's."""

    norms: NormNames = NORMS_BEFORE
    norm_offset: float = 0.0  # added to every norm weight, in float32
    # Norms of queries and keys: of each head by itself, or of the whole projection.
    query_key_norm: Literal["none", "head", "projection"] = "none"
    joined_projections: bool = False  # qkv_proj and gate_up_proj instead of five matrices
    partial_rotary: bool = False  # only the first numbers of a head may be rotated
    activation_field: str = "hidden_act"
    windows: Callable[[Any], tuple[int | None, ...]] = no_windows
    rotations: Callable[[Any], tuple[str, ...]] = shared_rotation
    embedding_scale: Callable[[Any], float] = unscaled
    query_scale: Callable[[Any], float] = unscaled  # beside the 1 / sqrt(d) of every family
    unsupported_fields: tuple[str, ...] = ()  # fields of the config that must be empty


FAMILIES: dict[str, Family] = {  # by transformers' model_type
    "llama": Family(),
    "qwen2": Family(windows=windows_by_layer_type),
    "qwen3": Family(query_key_norm="head", windows=windows_by_layer_type),
    "mistral": Family(windows=windows_everywhere),
    "smollm3": Family(windows=windows_by_layer_type, rotations=rotation_where_listed),
    "phi3": Family(joined_projections=True, partial_rotary=True, windows=windows_everywhere),
    "olmo2": Family(norms=NORMS_AFTER, query_key_norm="projection"),
    "gemma3_text": Family(
        norms=NORMS_AROUND,
        norm_offset=1.0,
        query_key_norm="head",
        activation_field="hidden_activation",
        windows=windows_by_layer_type,
        rotations=rotation_by_layer_type,
        embedding_scale=root_of_hidden_size,
        query_scale=query_scale_of_gemma,
        unsupported_fields=(
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "use_bidirectional_attention",
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class DecoderFacts:
    """A family and what its config says. L: layers."""

    family: Family
    activation: str  # a key of ACTIVATIONS
    windows: tuple[int | None, ...]  # [L] tokens that a layer attends to, itself included
    rotations: tuple[str, ...]  # [L] names of rotary tables
    embedding_scale: float
    query_scale: float

    @property
    def has_llama_layer(self) -> bool:
        """Whether `FusedLayer` and the Triton kernels compute these layers.

        All others run in torch operations on every device. Windows, and layers without rotation,
        do not matter here: the first concern attention, the second use a table of zero angles.
        """
        family = self.family
        return (
            family.norms == NORMS_BEFORE
            and family.norm_offset == 0
            and family.query_key_norm != "projection"
            and not family.joined_projections
            and not family.partial_rotary
            and self.activation == "silu"
            and self.query_scale == 1
        )


def read_facts(config: Any) -> DecoderFacts:
    """The facts of a config for which `fast_path_refusal` is None."""
    family = FAMILIES[config.model_type]
    return DecoderFacts(
        family=family,
        activation=getattr(config, family.activation_field),
        windows=family.windows(config),
        rotations=family.rotations(config),
        embedding_scale=family.embedding_scale(config),
        query_scale=family.query_scale(config),
    )


def fast_path_refusal(config: Any, device_type: str = "cpu") -> str | None:
    """A clause that says why the fast path cannot run this config on this device; None if it can.

    Example:
        "the fast path does not run gpt2 models"
    """
    refusal = _find_refusal(config, device_type)
    return None if refusal is None else f"the fast path does not run {refusal.models}"


def check_architecture(config: Any, device_type: str = "cpu") -> None:
    """Raise PoiseError if the fast path would compute a model of this config wrongly."""
    refusal = _find_refusal(config, device_type)
    if refusal is not None:
        raise PoiseError(
            f"{refusal.models} are not on the fast path: {refusal.remedy}, or set model.path=auto"
        )


class _Refusal(NamedTuple):
    models: str  # which models are refused, in the plural
    remedy: str


def _find_refusal(config: Any, device_type: str) -> _Refusal | None:
    family = FAMILIES.get(config.model_type)
    if family is None:
        return _Refusal(f"{config.model_type} models", f"choose a {', '.join(FAMILIES)} model")
    rope_types = [rope.get("rope_type") for rope in rope_parameters(config)]
    rope_type = next((kind for kind in rope_types if kind in LENGTH_DEPENDENT_ROPE), None)
    if rope_type is not None:
        return _Refusal(
            f"models with {rope_type} rotary embedding (its angles depend on the sequence length)",
            "choose one with fixed angles",
        )
    activation = getattr(config, family.activation_field)
    if activation not in ACTIVATIONS:
        return _Refusal(
            f"models with {activation} activations", f"choose one with {' or '.join(ACTIVATIONS)}"
        )
    for field_name in family.unsupported_fields:
        if getattr(config, field_name):
            return _Refusal(f"models with {field_name}", "choose one without it")
    # The GPU sampler's attention kernel and flash attention over shared prompts know no windows.
    if device_type == "cuda" and any(family.windows(config)):
        return _Refusal(
            "models with sliding-window attention on a GPU",
            "choose one with full attention, or model.device=cpu",
        )
    return None


def rope_parameters(config: Any) -> list[dict[str, Any]]:
    """The config's rotary embeddings: one, or one for each layer type."""
    parameters = getattr(config, "rope_parameters", None) or {}
    by_layer_type = [nested for nested in parameters.values() if isinstance(nested, dict)]
    return by_layer_type or [parameters]
