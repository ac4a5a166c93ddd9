"""Influence of trained rows on held-out answers through any layers: products of gradients.

    influence of row i on answer q = <sum_k c_k g_k, sum_j g_j>      g = gradient of log pi(token)

summed over the chosen parameters, k over the row's tokens, c_k = -dL/dlogp_k, j over the answer's.
It is what one unit of learning rate adds to log pi(answer) through these parameters, to first
order, where the step is plain gradient descent. `heldout_pushes.py` computes it for the output
layer without a backward pass; here each row and each answer takes one of its own.

    all_parameters    all that are trained: exact to first order
    middle_layer      those of the middle layer alone: finds copies of held-out problems
                      (docs/guide/report.md#trace), and its gradients fit in memory for large models
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from counterpoise.errors import PoiseError, format_count
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.load import Policy
from counterpoise.model.memory_share import allowed_bytes
from counterpoise.model.scoring import forward
from counterpoise.model.swapped_weights import trained_parameters
from counterpoise.types import Floats, Row
from counterpoise.update.repeatable import repeatable

MIDDLE_LAYER, ALL_PARAMETERS = "middle_layer", "all_parameters"
CPU_GRADIENT_BYTES = 1 << 30  # of the answers' gradients that are kept at once
REMEDY = "set monitor.probe_through=output_layer, or middle_layer instead of all_parameters"


@dataclass(frozen=True, slots=True)
class GradientSettings:
    """Which parameters influence is summed over, and how the backward passes run.

    Example:
        GradientSettings("middle_layer", temperature=1.0, checkpointing=config.update.checkpointing)
    """

    through: str  # MIDDLE_LAYER or ALL_PARAMETERS
    temperature: float
    checkpointing: bool = False
    repeatable: bool = False


def gradient_products(
    policy: Policy,
    rows: Sequence[Row],
    pulls: Sequence[Floats],
    answers: Sequence[Row],
    settings: GradientSettings,
) -> NDArray[np.float64]:
    """The influence of every row, whose tokens have these pulls, on every answer: [R, Q].

    Answers whose gradients do not fit in memory together are taken in blocks, and the rows'
    gradients are computed again for each block.
    """
    with repeatable(settings.repeatable), torch.enable_grad():
        parameters = choose_parameters(policy, settings, answers[0])
        num_weights = sum(weight.numel() for weight in parameters)
        gradient_bytes = num_weights * parameters[0].element_size()
        block_size = FittedSize(
            max(1, _bytes_allowed(policy.device) // gradient_bytes),
            describe=lambda count: f"gradients of {format_count(count, 'held-out answer')}",
            remedy=REMEDY,
        )

        def gradient(row: Row, weights_T: Floats | None = None) -> Tensor:
            total = _weighted_sum(policy, row, weights_T, settings)
            return _flat_gradient(total, parameters)

        return block_size.run_fitting(
            lambda size: _products_in_blocks(gradient, rows, pulls, answers, num_weights, size),
            smallest=1,
            total=len(answers),
        )


def _products_in_blocks(
    gradient: Callable[..., Tensor],
    rows: Sequence[Row],
    pulls: Sequence[Floats],
    answers: Sequence[Row],
    num_weights: int,
    block_size: int,
) -> NDArray[np.float64]:
    products = np.zeros((len(rows), len(answers)))
    for first in range(0, len(answers), block_size):
        block = answers[first : first + block_size]
        # Filled one by one: a list of them and their stack would be twice the memory.
        answer_gradients: Tensor | None = None
        for place, answer in enumerate(block):
            vector = gradient(answer)
            if answer_gradients is None:
                answer_gradients = vector.new_empty(len(block), num_weights)
            answer_gradients[place] = vector
        assert answer_gradients is not None, "a block has an answer"
        for index, (row, pulls_T) in enumerate(zip(rows, pulls, strict=True)):
            products[index, first : first + len(block)] = (
                (answer_gradients @ gradient(row, pulls_T)).double().cpu().numpy()
            )
    return products


def choose_parameters(policy: Policy, settings: GradientSettings, row: Row) -> list[nn.Parameter]:
    """The trained parameters that influence is summed over; with LoRA those of the adapter.

    The middle layer is that of the longest list of layers that `row` goes through: a model may have
    others, for images.
    """
    trained = trained_parameters(policy.model)
    if settings.through == ALL_PARAMETERS:
        return [weight for _, weight in trained]
    middle_layers = []
    for name, module in policy.model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module):
            prefix = f"{name}.{len(module) // 2}."
            weights = [weight for weight_name, weight in trained if weight_name.startswith(prefix)]
            if weights:
                middle_layers.append((len(module), weights))
    if middle_layers:
        total = _weighted_sum(policy, row, None, settings)
        gradients = torch.autograd.grad(
            total, [weights[0] for _, weights in middle_layers], allow_unused=True
        )
        used = [
            layer
            for layer, gradient in zip(middle_layers, gradients, strict=True)
            if gradient is not None
        ]
        if used:
            return max(used, key=lambda layer: layer[0])[1]
    raise PoiseError(
        f"{type(policy.model).__name__} has no middle layer that is trained: set "
        f"monitor.probe_through={ALL_PARAMETERS}"
    )


def _bytes_allowed(device: torch.device) -> int:
    """Bytes of the answers' gradients: on a GPU an eighth of what we may take of it."""
    if device.type != "cuda":
        return CPU_GRADIENT_BYTES
    return allowed_bytes(torch.cuda.get_device_properties(device).total_memory) // 8


def _weighted_sum(
    policy: Policy, row: Row, weights_T: Floats | None, settings: GradientSettings
) -> Tensor:
    """The weighted sum of a row's log-probabilities; without weights the plain sum."""
    outputs = forward(policy, [row], settings.temperature, checkpointing=settings.checkpointing)
    logprobs_T = outputs.logprobs_M
    if weights_T is None:
        return logprobs_T.sum()
    weights = torch.as_tensor(weights_T, device=logprobs_T.device, dtype=logprobs_T.dtype)
    return logprobs_T @ weights


def _flat_gradient(total: Tensor, parameters: Sequence[nn.Parameter]) -> Tensor:
    gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(weight) if gradient is None else gradient).flatten()
            for weight, gradient in zip(parameters, gradients, strict=True)
        ]
    )
