"""Summaries and gradients of a chunk of logits in one pass; formulas are in `model/head.py`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _summarise(
    logits, targets, logprob, entropy, lse_out, inverse_temperature, V, stride, block: tl.constexpr
):
    """logsumexp, <pi, z> and the target's logit of one row, with a running maximum per lane."""
    n = tl.program_id(0).to(tl.int64)
    row = logits + n * stride
    running_max = tl.full([block], float("-inf"), tl.float32)
    running_mass = tl.zeros([block], tl.float32)
    weighted = tl.zeros([block], tl.float32)
    for start in range(0, V, block):
        token = start + tl.arange(0, block)
        z = (
            tl.load(row + token, mask=token < V, other=float("-inf")).to(tl.float32)
            * inverse_temperature
        )
        new_max = tl.maximum(running_max, z)
        rescale = tl.where(running_max == float("-inf"), 0.0, tl.exp(running_max - new_max))
        exponentials = tl.where(token < V, tl.exp(z - new_max), 0.0)
        running_mass = running_mass * rescale + exponentials
        weighted = weighted * rescale + tl.where(token < V, exponentials * z, 0.0)
        running_max = new_max
    # Combine the lanes; a lane that saw no logit has mass 0 and must not contribute a nan.
    peak = tl.max(running_max, 0)
    scale = tl.where(running_max == float("-inf"), 0.0, tl.exp(running_max - peak))
    mass = tl.sum(running_mass * scale, 0)
    lse = peak + tl.log(mass)
    target_logit = tl.load(row + tl.load(targets + n)).to(tl.float32) * inverse_temperature
    tl.store(logprob + n, target_logit - lse)
    tl.store(entropy + n, lse - tl.sum(weighted * scale, 0) / mass)
    tl.store(lse_out + n, lse)


@triton.jit
def _logit_gradient(
    logits, targets, lse, grad, inverse_temperature, V, stride, block: tl.constexpr
):
    """In place: z -> (e_o - pi) * grad / temperature."""
    n = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * block + tl.arange(0, block)
    address = logits + n * stride + token
    z = tl.load(address, mask=token < V, other=float("-inf")).to(tl.float32) * inverse_temperature
    is_target = (token == tl.load(targets + n)).to(tl.float32)
    gradient = (is_target - tl.exp(z - tl.load(lse + n))) * (
        tl.load(grad + n) * inverse_temperature
    )
    tl.store(address, gradient.to(logits.dtype.element_ty), mask=token < V)


def summarise(
    logits: Tensor, targets: Tensor, temperature: float, out: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Fill (log-probabilities, entropies, logsumexp), each [n] float32, from logits [n, V]."""
    n, V = logits.shape
    _summarise[(n,)](
        logits, targets, *out, 1 / temperature, V, logits.stride(0), block=2048, num_warps=8
    )


def logit_gradient_(
    logits: Tensor, targets: Tensor, lse: Tensor, grad: Tensor, temperature: float
) -> Tensor:
    """Overwrite the logits with their gradient."""
    n, V = logits.shape
    _logit_gradient[(n, triton.cdiv(V, 2048))](
        logits, targets, lse, grad, 1 / temperature, V, logits.stride(0), block=2048, num_warps=4
    )
    return logits
