"""Pad attention heads with zeros to a width that vLLM supports on a CPU; the model stays the same.

    [q, 0] . [k, 0] = q . k            heads of width d become heads of width D

Other effects of the width are compensated. The norm of queries and keys (Qwen3) divides by the root
of (sum of squares) / D instead of / d, so keys are scaled by sqrt(d / D); for queries this cancels
with the attention scale, 1 / sqrt(D) instead of 1 / sqrt(d). Only the first d numbers are rotated.
What remains is the norm's epsilon, which weighs D / d times as much: a relative change of less than
1e-6 where the mean square is near 1.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from counterpoise.errors import PoiseError

CPU_HEAD_WIDTHS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # of vLLM 0.32


def supported_head_width(head_dim: int, device: str, model_type: str) -> int:
    """The head width D that vLLM should run with; a GPU takes any width."""
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
    """Give a transformers config heads of width D of which the first d numbers are rotated."""
    config.head_dim = D
    # vLLM truncates factor * D to an integer; the half keeps rounding from losing one.
    config.rope_parameters = {**config.rope_parameters, "partial_rotary_factor": (d + 0.5) / D}


def widen_weight(name: str, weight: Tensor, d: int, D: int) -> Tensor:
    """The named weight with heads of width D; weights without heads are returned unchanged."""
    module_name = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
    if d == D or module_name not in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"):
        return weight
    if module_name == "o_proj":  # [hidden, heads * d]
        return F.pad(weight.unflatten(1, (-1, d)), (0, D - d)).flatten(1)
    if module_name == "k_norm":
        weight = weight * (d / D) ** 0.5
    if weight.ndim == 1:  # a norm, or a bias
        return F.pad(weight.unflatten(0, (-1, d)), (0, D - d)).flatten()
    return F.pad(weight.unflatten(0, (-1, d)), (0, 0, 0, D - d)).flatten(0, 1)
