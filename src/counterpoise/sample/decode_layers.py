"""The layers of a decoding step with few, larger kernels.

    separate    norm, product, heads, attention, product, norm, product, gate, product    9 a layer
    fused       norm + product + heads, attention, product, norm + product + gate, product    5

`Decoder` has the separate form, which training and prefill share. Here a step has few rows, and
each small kernel takes about as long as a product. Results differ by rounding.

The fused form has not been timed on a GPU yet, so it is used only with POISE_DECODE_PRODUCTS=fused.
"""

from __future__ import annotations

import os

from torch import Tensor

from counterpoise.errors import PoiseError
from counterpoise.model.decoder import AttendFunction, Decoder, LlamaLayer, add_linear
from counterpoise.model.families import SHARED_ROTATION
from counterpoise.model.kernels import is_half_on_gpu
from counterpoise.model.layer_parts import HeadNorms, joint_weight, rms_norm

VARIABLE = "POISE_DECODE_PRODUCTS"
FORMS = ("separate", "fused")


def uses_fused_products(decoder: Decoder) -> bool:
    """Whether this decoder's steps take the fused form."""
    form = os.environ.get(VARIABLE, "") or FORMS[0]
    if form not in FORMS:
        raise PoiseError(f"{VARIABLE}={form}: give {' or '.join(FORMS)}")
    on_gpu = is_half_on_gpu(decoder.unembedding)
    return form == "fused" and on_gpu and supports_fused_products(decoder)


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
    decoder: Decoder, tokens_R: Tensor, positions_R: Tensor, attend: AttendFunction
) -> Tensor:
    """Hidden states [R, D] of one token of each row: what `decoder(...)` computes."""
    from counterpoise.sample.kernels.products import gated_product, heads_product  # needs Triton

    x, epsilon = decoder.embed(tokens_R), decoder.epsilon
    for index, layer in enumerate(decoder.llama_layers):
        q, k, v = heads_product(
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
        )
        mixed = attend(index, q, k, v).reshape(len(x), -1)
        y = add_linear(x, layer.output, mixed)
        gate_and_up = joint_weight([linear.weight for linear in layer.gate_and_up])
        gated = gated_product(y, layer.mlp_norm.weight, gate_and_up, epsilon)
        x = add_linear(y, layer.down, gated)
    return rms_norm(x, decoder.norm.weight, epsilon)


def _biases(layer: LlamaLayer) -> tuple[Tensor, Tensor, Tensor] | None:
    q, k, v = (linear.bias for linear in layer.qkv)
    return None if q is None else (q, k, v)


def _head_norms(layer: LlamaLayer) -> HeadNorms:
    if layer.head_norms is None:
        return None
    q_norm, k_norm = layer.head_norms
    return q_norm.weight, k_norm.weight
