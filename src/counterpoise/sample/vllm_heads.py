"""Heads of a width that vLLM's attention on a CPU lacks, filled up with zeros: the same model.

    [q, 0] . [k, 0] = q . k            d numbers a head become D

What else depends on the width is undone. The norm of queries and keys (Qwen3) divides by a root of
sum / D in place of sum / d, so keys are scaled by sqrt(d / D); for queries that and the attention's
1 / sqrt(D) in place of 1 / sqrt(d) cancel. Only the first d numbers of a head are rotated. What is
left is the norm's epsilon, which counts D / d fold: less than 1e-6 of a number near 1.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from counterpoise.errors import PoiseError

CPU_HEAD_WIDTHS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # vLLM 0.32


def supported_head_width(head_dim: int, device: str, model_type: str) -> int:
    """D for d; on a GPU vLLM's kernels take what they get."""
    if device != "cpu" or head_dim in CPU_HEAD_WIDTHS:
        return head_dim
    wider = [width for width in CPU_HEAD_WIDTHS if width > head_dim]
    if model_type != "qwen3" or not wider:
        raise PoiseError(
            f"vLLM has no attention for {model_type} heads of {head_dim} on a CPU: "
            "set sample.engine=native"
        )
    return wider[0]


def widen_config(config: Any, d: int, D: int) -> None:
    """Of a transformers model: heads of D, of which the first d numbers are rotated."""
    config.head_dim = D
    config.rope_parameters = {**config.rope_parameters, "partial_rotary_factor": (d + 0.5) / D}


def widen_weight(name: str, weight: Tensor, d: int, D: int) -> Tensor:
    """The weight of this name with heads of D; weights without heads stay as they are."""
    part = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
    if d == D or part not in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"):
        return weight
    if part == "o_proj":  # [hidden, heads * d]
        return F.pad(weight.unflatten(1, (-1, d)), (0, D - d)).flatten(1)
    if part == "k_norm":
        weight = weight * (d / D) ** 0.5
    if weight.ndim == 1:  # a norm, or a bias
        return F.pad(weight.unflatten(0, (-1, d)), (0, D - d)).flatten()
    return F.pad(weight.unflatten(0, (-1, d)), (0, 0, 0, D - d)).flatten(0, 1)
