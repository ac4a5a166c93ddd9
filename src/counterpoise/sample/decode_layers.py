"""The layers of a decoding step with few, larger kernels.

    separate    norm, product, heads, attention, product, norm, product, gate, product    9 a layer
    fused       norm + product + heads, attention, product, norm + product + gate, product    5
    chained     the same five, each set up while the one before it runs (`kernels/chain.py`); all
                products are our own kernels, since the library's cannot be part of a chain

`Decoder` has the separate form, which training and prefill share. Here a step has few rows, and
each small kernel takes about as long as a product. Results differ by rounding. Where long rows are
cut into parts, a kernel that joins them comes on top, and breaks the chain.

The other forms have not been timed on a GPU yet, so they are used on request only:
POISE_DECODE_PRODUCTS=fused, or chained, which needs Hopper or later.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import Tensor, nn

from counterpoise.errors import PoiseError
from counterpoise.model.decoder import Decoder, LlamaLayer, add_linear
from counterpoise.model.families import SHARED_ROTATION
from counterpoise.model.kernels import is_half_on_gpu
from counterpoise.model.layer_parts import HeadNorms, joint_weight, rms_norm

VARIABLE = "POISE_DECODE_PRODUCTS"
SEPARATE, FUSED, CHAINED = FORMS = ("separate", "fused", "chained")
HOPPER = (9, 0)  # the first compute capability with programmatic dependent launch

# An `attend` function for layers without a window: (layer, q, k, v) -> [R, H, d]
DecodeAttention = Callable[[int, Tensor, Tensor, Tensor], Tensor]


def requested_form() -> str:
    """The form that the environment asks for; a wrong one is refused."""
    form = os.environ.get(VARIABLE, "") or SEPARATE
    if form not in FORMS:
        raise PoiseError(f"{VARIABLE}={form}: give one of {', '.join(FORMS)}")
    return form


def choose_form(decoder: Decoder) -> str:
    """The form of this decoder's steps: the requested one where the kernels can compute it."""
    form = requested_form()
    weight = decoder.unembedding
    # In float16 the fused norm could overflow.
    is_bfloat16_on_gpu = is_half_on_gpu(weight) and weight.dtype == torch.bfloat16
    if not is_bfloat16_on_gpu or not supports_fused_products(decoder):
        return SEPARATE
    if form == CHAINED and torch.cuda.get_device_capability(decoder.device) < HOPPER:
        raise PoiseError(f"{VARIABLE}={form} needs a GPU of compute capability 9.0 or later")
    return form


def supports_fused_products(decoder: Decoder) -> bool:
    """Whether the kernels compute this decoder's layers: Llama's, with one rotary table.

    Gates with biases are left to the separate form: no model on this path has them.
    """
    return (
        decoder.has_llama_layer
        and set(decoder.facts.rotations) == {SHARED_ROTATION}
        and all(
            linear.bias is None for layer in decoder.llama_layers for linear in layer.gate_and_up
        )
    )


def decode_layers(
    decoder: Decoder,
    tokens_R: Tensor,
    positions_R: Tensor,
    attend: DecodeAttention,
    *,
    chained: bool = False,
) -> Tensor:
    """Hidden states [R, D] of one token of each row: what `decoder(...)` computes."""
    from counterpoise.sample.kernels import products  # needs Triton

    x, epsilon = decoder.embed(tokens_R), decoder.epsilon
    for index, layer in enumerate(decoder.llama_layers):
        q, k, v = products.heads_product(
            x,
            layer.attention_norm.weight,
            joint_weight([linear.weight for linear in layer.qkv]),
            _biases(layer),
            _head_norms(layer),
            rotary_table=decoder.rotary_tables[SHARED_ROTATION],
            positions=positions_R,
            heads=decoder.heads,
            kv_heads=decoder.kv_heads,
            epsilon=epsilon,
            chained=chained,
        )
        mixed = attend(index, q, k, v).reshape(len(x), -1)
        y = _add_linear(x, layer.output, mixed, chained)
        gate_and_up = joint_weight([linear.weight for linear in layer.gate_and_up])
        gated = products.gated_product(
            y, layer.mlp_norm.weight, gate_and_up, epsilon, chained=chained
        )
        x = _add_linear(y, layer.down, gated, chained)
    return rms_norm(x, decoder.norm.weight, epsilon)


def _add_linear(x: Tensor, linear: nn.Linear, inputs: Tensor, chained: bool) -> Tensor:
    """x + linear(inputs), in place."""
    if not chained:
        return add_linear(x, linear, inputs)
    # The library's product cannot be part of a chain.
    from counterpoise.sample.kernels.products import add_product

    return add_product(x, inputs, linear.weight, linear.bias, chained=True)


def _biases(layer: LlamaLayer) -> tuple[Tensor, Tensor, Tensor] | None:
    q, k, v = (linear.bias for linear in layer.qkv)
    return None if q is None else (q, k, v)


def _head_norms(layer: LlamaLayer) -> HeadNorms:
    if layer.head_norms is None:
        return None
    q_norm, k_norm = layer.head_norms
    return q_norm.weight, k_norm.weight
