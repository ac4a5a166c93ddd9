"""Kernel rows and first-order displacement over all parameters, not only the output layer.

    K_ck = <g_c, g_k>,   g_k = grad log pi(o_k)

<g_k, u> is the derivative of log pi(o_k) along the direction u, and in forward mode one pass gives
it for *all* tokens k. With u = g_c, from one backward pass, that is a whole row of the kernel;
with u a parameter change it is the first-order displacement of every token. No per-token gradient
is ever formed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from counterpoise.errors import PoiseError
from counterpoise.microscope.batch_tokens import check_rows
from counterpoise.model.load import Policy
from counterpoise.model.residuals import HALF_DTYPES
from counterpoise.model.scoring import ForwardOutputs, forward, micro_batches
from counterpoise.model.swapped_weights import (
    WeightDirection,
    check_parameter_names,
    forward_with_weights,
    trained_parameters,
)
from counterpoise.types import Row


def parameter_kernel_row(
    policy: Policy,
    rows: Sequence[Row],
    candidate: tuple[int, int],
    *,
    temperature: float = 1.0,
    micro_tokens: int = 8192,
) -> Tensor:
    """<g_c, g_k> of the token c = `candidate` (row, position) with every response token k: [N]."""
    gradient = token_gradient(policy, rows, candidate, temperature=temperature)
    return derivatives_along(
        policy, rows, gradient, temperature=temperature, micro_tokens=micro_tokens
    )


def token_gradient(
    policy: Policy, rows: Sequence[Row], candidate: tuple[int, int], *, temperature: float = 1.0
) -> dict[str, Tensor]:
    """The gradient of one token's log-probability with respect to every trained parameter."""
    row, position = candidate
    if not (0 <= row < len(rows) and 0 <= position < rows[row].num_tokens):
        raise PoiseError(f"there is no token {position} in row {row} of a batch of {len(rows)}")
    logprobs_M = forward(policy, [rows[row]], temperature).logprobs_M
    names, weights = zip(*trained_parameters(policy.model), strict=True)
    gradients = torch.autograd.grad(logprobs_M[position], weights, allow_unused=True)
    return {
        name: gradient
        for name, gradient in zip(names, gradients, strict=True)
        if gradient is not None
    }


def derivatives_along(
    policy: Policy,
    rows: Sequence[Row],
    direction: WeightDirection,
    *,
    temperature: float = 1.0,
    micro_tokens: int = 8192,
) -> Tensor:
    """<g_k, direction> for every response token k, row after row: [N], in forward mode."""
    check_rows(rows)
    if policy.device.type == "cuda" and policy.decoder.dtype in HALF_DTYPES:
        raise PoiseError(
            "half-precision kernels have no forward-mode derivative: set model.dtype=float32"
        )
    derivatives: list[Tensor] = [torch.empty(0)] * len(rows)
    for batch in micro_batches(rows, micro_tokens):
        batch_rows = [rows[index] for index in batch]
        # Only the plain attention kernel has a forward-mode derivative. Gradients stay enabled,
        # because passes without them write in place and read joined weights, which lose tangents.
        with torch.enable_grad(), forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
            result = _forward_with_tangents(policy, batch_rows, direction, temperature)
            tangent_M = forward_ad.unpack_dual(result.logprobs_M).tangent
            lengths = result.lengths
        if tangent_M is None:
            raise PoiseError("the direction moves no parameter of this model")
        for index, row_derivatives in zip(batch, tangent_M.split(lengths), strict=True):
            derivatives[index] = row_derivatives
    return torch.cat(derivatives)


def _forward_with_tangents(
    policy: Policy, rows: Sequence[Row], direction: WeightDirection, temperature: float
) -> ForwardOutputs:
    """A forward pass with weights that carry tangents; they are detached, so no graph is built."""
    check_parameter_names(policy, direction)
    weights = {name: weight.detach() for name, weight in policy.model.named_parameters()}
    dual_weights = weights | {
        name: forward_ad.make_dual(weights[name], tangent.to(weights[name]))
        for name, tangent in direction.items()
    }
    return forward_with_weights(policy, dual_weights, rows, temperature)
