"""One pass over the logits of a chunk, forward and backward: `model/head.py` has the formulas."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _summarise(
    logits, targets, logprob, entropy, lse_out, inverse_temperature, V, stride, block: tl.constexpr
):
    """logsumexp, <pi, z> and z_o of one row, the maximum carried along."""
    n = tl.program_id(0).to(tl.int64)
    row = logits + n * stride
    most = tl.full([block], float("-inf"), tl.float32)
    total = tl.zeros([block], tl.float32)
    weighted = tl.zeros([block], tl.float32)
    for start in range(0, V, block):
        v = start + tl.arange(0, block)
        z = tl.load(row + v, mask=v < V, other=float("-inf")).to(tl.float32) * inverse_temperature
        larger = tl.maximum(most, z)
        shift = tl.where(most == float("-inf"), 0.0, tl.exp(most - larger))
        e = tl.where(v < V, tl.exp(z - larger), 0.0)
        total = total * shift + e
        weighted = weighted * shift + tl.where(v < V, e * z, 0.0)
        most = larger
    peak = tl.max(most, 0)
    scale = tl.where(most == float("-inf"), 0.0, tl.exp(most - peak))
    mass = tl.sum(total * scale, 0)
    lse = peak + tl.log(mass)
    z_o = tl.load(row + tl.load(targets + n)).to(tl.float32) * inverse_temperature
    tl.store(logprob + n, z_o - lse)
    tl.store(entropy + n, lse - tl.sum(weighted * scale, 0) / mass)
    tl.store(lse_out + n, lse)


@triton.jit
def _error(logits, targets, lse, grad, inverse_temperature, V, stride, block: tl.constexpr):
    """In place: z -> (e_o - pi) * grad / temperature."""
    n = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1) * block + tl.arange(0, block)
    at = logits + n * stride + v
    z = tl.load(at, mask=v < V, other=float("-inf")).to(tl.float32) * inverse_temperature
    hit = (v == tl.load(targets + n)).to(tl.float32)
    error = (hit - tl.exp(z - tl.load(lse + n))) * (tl.load(grad + n) * inverse_temperature)
    tl.store(at, error.to(logits.dtype.element_ty), mask=v < V)


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
    """The gradient with respect to the logits, in their place."""
    n, V = logits.shape
    _error[(n, triton.cdiv(V, 2048))](
        logits, targets, lse, grad, 1 / temperature, V, logits.stride(0), block=2048, num_warps=4
    )
    return logits
