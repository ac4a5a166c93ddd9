"""Over all parameters, not only the output layer: kernel rows and first-order displacement.

    K_ck = <g_c, g_k>,   g_k = grad log pi(o_k)          d log pi(o_k) along u = <g_k, u>

The right-hand side is a forward-mode derivative: one pass gives <g_k, u> for *all* tokens k. With
u = g_c, from one backward, that is a whole row of the kernel; with u a parameter change it is the
displacement of every token to first order. No per-token gradient is ever formed.
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
from counterpoise.model.residuals import HALF
from counterpoise.model.scoring import Forward, forward, micro_batches
from counterpoise.model.swapped_weights import Direction, forward_with
from counterpoise.types import Row


def parameter_kernel_row(
    policy: Policy,
    rows: Sequence[Row],
    candidate: tuple[int, int],
    *,
    temperature: float = 1.0,
    micro_tokens: int = 8192,
) -> Tensor:
    """<g_c, g_k> of the token `candidate` = (row, position) with every response token k: [N]."""
    gradient = token_gradient(policy, rows, candidate, temperature=temperature)
    return derivatives_along(
        policy, rows, gradient, temperature=temperature, micro_tokens=micro_tokens
    )


def token_gradient(
    policy: Policy, rows: Sequence[Row], candidate: tuple[int, int], *, temperature: float = 1.0
) -> dict[str, Tensor]:
    """The gradient of one token's log-probability with respect to every parameter."""
    row, position = candidate
    if not (0 <= row < len(rows) and 0 <= position < rows[row].num_tokens):
        raise PoiseError(f"there is no token {position} in row {row} of a batch of {len(rows)}")
    logprobs_M = forward(policy, [rows[row]], temperature).logprobs_M
    names, weights = zip(*policy.model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(logprobs_M[position], weights, allow_unused=True)
    return {n: g for n, g in zip(names, gradients, strict=True) if g is not None}


def derivatives_along(
    policy: Policy,
    rows: Sequence[Row],
    direction: Direction,
    *,
    temperature: float = 1.0,
    micro_tokens: int = 8192,
) -> Tensor:
    """<g_k, direction> for every response token k, row after row: [N], in forward mode."""
    check_rows(rows)
    if policy.device.type == "cuda" and policy.decoder.dtype in HALF:
        raise PoiseError("kernels in half precision have no forward mode: set model.dtype=float32")
    moved: list[Tensor] = [torch.empty(0)] * len(rows)
    for batch in micro_batches(rows, micro_tokens):
        members = [rows[i] for i in batch]
        # only the plain kernel of attention has a forward-mode derivative; without gradients passes
        # may write in place and read joined weights, and a tangent would be lost on the way
        with torch.enable_grad(), forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
            result = _forward_with_tangents(policy, members, direction, temperature)
            tangent_M = forward_ad.unpack_dual(result.logprobs_M).tangent
            lengths = result.lengths
        if tangent_M is None:
            raise PoiseError("the direction moves no parameter of this model")
        for i, part in zip(batch, tangent_M.split(lengths), strict=True):
            moved[i] = part
    return torch.cat(moved)


def _forward_with_tangents(
    policy: Policy, rows: Sequence[Row], direction: Direction, temperature: float
) -> Forward:
    """All weights are lent without a gradient, so that no graph is built."""
    lent = {name: weight.detach() for name, weight in policy.model.named_parameters()}
    for name, tangent in direction.items():
        was = lent.get(name)
        lent[name] = tangent if was is None else forward_ad.make_dual(was, tangent.to(was))
    return forward_with(policy, lent, rows, temperature)
