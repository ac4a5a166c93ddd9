"""Linear layers that read the same input as one matrix product: q, k, v; gate, up.

`lay_side_by_side` moves their weights into one block of memory, once, when a policy is made. Each
stays a parameter of its own, under its own name, for the optimizer and for checkpoints; a sampler,
which needs no gradient, sees the block as one matrix, and so does a layer whose backward pass is
written out (`model/layer.py`). Where autograd is to hand every parameter its part the weights are
copied together, which costs next to nothing beside the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def lay_side_by_side(layers: Any) -> None:
    for layer in layers:
        attention, mlp = layer.self_attn, layer.mlp
        _join((attention.q_proj, attention.k_proj, attention.v_proj))
        _join((mlp.gate_proj, mlp.up_proj))


def _join(parts: Sequence[nn.Linear]) -> None:
    block = torch.cat([part.weight.detach() for part in parts])
    for part, view in zip(parts, block.split([len(part.weight) for part in parts]), strict=True):
        part.weight.data = view


def product(x: Tensor, parts: Sequence[nn.Linear]) -> Tensor:
    """[N, sum of the parts' widths]"""
    biases: list[Tensor] = [part.bias for part in parts if part.bias is not None]
    return F.linear(
        x, matrix([part.weight for part in parts]), torch.cat(biases) if biases else None
    )


def matrix(weights: Sequence[Tensor]) -> Tensor:
    """The weights above one another; no copy where they lie so and nothing is differentiated."""
    if not torch.is_grad_enabled() and _adjacent(weights):
        rows, width = sum(len(w) for w in weights), weights[0].shape[1]
        return weights[0].as_strided((rows, width), (width, 1))
    return torch.cat(list(weights))


def _adjacent(weights: Sequence[Tensor]) -> bool:
    end = weights[0].data_ptr()
    storage = weights[0].untyped_storage().data_ptr()
    for weight in weights:
        if weight.data_ptr() != end or weight.untyped_storage().data_ptr() != storage:
            return False
        end += weight.numel() * weight.element_size()
    return True
