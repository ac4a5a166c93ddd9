"""Influence of trained rows on held-out answers through any layers: products of gradients.

    influence of row i on answer q = <sum_k c_k g_k, sum_j g_j>      g = gradient of log pi(token)

summed over the chosen parameters, k over the row's tokens, c_k = -dL/dlogp_k, j over the answer's.
It is what one unit of learning rate adds to log pi(answer) through these parameters, to first
order, where the step is plain gradient descent. `heldout_pushes.py` computes it for the output
layer without a backward pass; here each row and each answer takes one of its own.

    all_parameters    all that are trained: exact to first order
    middle_layer      those of the middle layer alone: tells texts apart as well as all of them do
                      (docs/guide/report.md#trace), and its gradients fit in memory for large models
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from counterpoise.errors import PoiseError
from counterpoise.model.load import Policy
from counterpoise.model.memory_share import allowed_bytes
from counterpoise.model.scoring import forward
from counterpoise.model.swapped_weights import trained_parameters
from counterpoise.types import Floats, Row

OUTPUT_LAYER, MIDDLE_LAYER, ALL_PARAMETERS = "output_layer", "middle_layer", "all_parameters"
CPU_GRADIENT_BYTES = 1 << 30  # of the answers' gradients that are kept at once


def gradient_products(
    policy: Policy,
    rows: Sequence[Row],
    pulls: Sequence[Floats],
    answers: Sequence[Row],
    temperature: float,
    through: str,
) -> NDArray[np.float64]:
    """The influence of every row, whose tokens have these pulls, on every answer: [R, Q].

    Answers whose gradients do not fit in memory together are taken in blocks, and the rows'
    gradients are computed again for each block.
    """
    parameters = choose_parameters(policy.model, through)
    gradient_bytes = sum(weight.numel() * weight.element_size() for weight in parameters)
    block_size = max(1, _bytes_allowed(policy.device) // max(1, gradient_bytes))
    products = np.zeros((len(rows), len(answers)))
    for first in range(0, len(answers), block_size):
        block = answers[first : first + block_size]
        answer_gradients = torch.stack(
            [_gradient(policy, answer, None, temperature, parameters) for answer in block]
        )
        for index, (row, pulls_T) in enumerate(zip(rows, pulls, strict=True)):
            row_gradient = _gradient(policy, row, pulls_T, temperature, parameters)
            products[index, first : first + len(block)] = (
                (answer_gradients @ row_gradient).double().cpu().numpy()
            )
    return products


def choose_parameters(model: nn.Module, through: str) -> list[nn.Parameter]:
    """The trained parameters that influence is summed over; with LoRA those of the adapter."""
    trained = trained_parameters(model)
    if through == ALL_PARAMETERS:
        return [weight for _, weight in trained]
    layers = max(
        ((name, module) for name, module in model.named_modules() if _is_layer_list(module)),
        key=lambda named: len(named[1]),
        default=None,
    )
    if layers is None:
        raise PoiseError(
            f"{type(model).__name__} has no list of layers to take the middle one of: set "
            f"monitor.probe_through={ALL_PARAMETERS}"
        )
    name, module = layers
    prefix = f"{name}.{len(module) // 2}."
    chosen = [weight for weight_name, weight in trained if weight_name.startswith(prefix)]
    if not chosen:
        raise PoiseError(
            f"no weight of the middle layer is trained: set monitor.probe_through={ALL_PARAMETERS}"
        )
    return chosen


def _is_layer_list(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList) and len(module) > 0


def _bytes_allowed(device: torch.device) -> int:
    """Bytes of the answers' gradients: on a GPU an eighth of what we may take of it."""
    if device.type != "cuda":
        return CPU_GRADIENT_BYTES
    return allowed_bytes(torch.cuda.get_device_properties(device).total_memory) // 8


@torch.enable_grad()
def _gradient(
    policy: Policy,
    row: Row,
    weights_T: Floats | None,
    temperature: float,
    parameters: Sequence[nn.Parameter],
) -> Tensor:
    """The gradient of the weighted sum of a row's log-probabilities, as one vector."""
    logprobs_T = forward(policy, [row], temperature).logprobs_M
    total = (
        logprobs_T.sum()
        if weights_T is None
        else logprobs_T
        @ torch.as_tensor(weights_T, device=logprobs_T.device, dtype=logprobs_T.dtype)
    )
    gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(weight) if gradient is None else gradient).flatten()
            for weight, gradient in zip(parameters, gradients, strict=True)
        ]
    )
