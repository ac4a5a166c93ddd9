"""One token a row without sorting: `sample/choose_token.py` has the formula.

    peaks      for every row and block of the vocabulary: maximum, sum of exp
    floor      only with top-k or top-p: the least logit that may be drawn, found by bisection
    pick       the block in which the cumulative sum passes u, and the token inside that block

Without a floor the vocabulary is read once, and one block of it twice. `pick` also keeps the row's
books: the token and its log-probability are stored at the row's step, and the row stops running
after an end token or at its limit. Tokens that tie with the floor's are all kept.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
LOGIT_SPAN = 60.0  # a logit this far below the largest has no weight that float32 could add
BISECTION_ROUNDS = 26  # of bisection: SPAN / 2^26 is below what tells two logits apart


@triton.jit
def _peaks(
    logits, floors, most, mass, inverse_temperature, V, blocks, cut: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    r, b = tl.program_id(0).to(tl.int64), tl.program_id(1)
    v = b * block + tl.arange(0, block)
    z = tl.load(logits + r * V + v, mask=v < V, other=float("-inf")).to(tl.float32)
    z = z * inverse_temperature
    if cut:
        z = tl.where(z >= tl.load(floors + r), z, float("-inf"))
    peak = tl.max(z, 0)
    tl.store(most + r * blocks + b, peak)
    tl.store(mass + r * blocks + b, tl.sum(tl.where(z > float("-inf"), tl.exp(z - peak), 0.0), 0))


@triton.jit
def _total(most, mass, r, blocks, padded: tl.constexpr):
    """(largest logit, sums of the blocks relative to it)"""
    b = tl.arange(0, padded)
    peaks = tl.load(most + r * blocks + b, mask=b < blocks, other=float("-inf"))
    sums = tl.load(mass + r * blocks + b, mask=b < blocks, other=0.0)
    peak = tl.max(peaks, 0)
    return peak, tl.where(sums > 0, sums * tl.exp(peaks - peak), 0.0)


@triton.jit
def _above(row, floor, peak, inverse_temperature, V, block: tl.constexpr):
    """(number, mass) of the tokens at or above a floor"""
    number = tl.zeros([block], tl.float32)
    mass = tl.zeros([block], tl.float32)
    for start in range(0, V, block):
        v = start + tl.arange(0, block)
        z = tl.load(row + v, mask=v < V, other=float("-inf")).to(tl.float32) * inverse_temperature
        number += tl.where(z >= floor, 1.0, 0.0)
        mass += tl.where(z >= floor, tl.exp(z - peak), 0.0)
    return tl.sum(number, 0), tl.sum(mass, 0)


@triton.jit
def _floor(
    logits, most, mass, floors, lse, inverse_temperature, V, blocks, top_p, top_k, rounds, span,
    block: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    """The largest floor that leaves top_k tokens, then one that leaves top_p of their mass."""
    r = tl.program_id(0).to(tl.int64)
    peak, weights = _total(most, mass, r, blocks, padded)
    total = tl.sum(weights, 0)
    tl.store(lse + r, peak + tl.log(total))
    row = logits + r * V
    low = peak - span
    if top_k > 0:
        high = peak
        for _ in range(rounds):
            middle = (low + high) / 2
            number, _mass = _above(row, middle, peak, inverse_temperature, V, block)
            enough = number >= top_k
            low, high = tl.where(enough, middle, low), tl.where(enough, high, middle)
        _number, total = _above(row, low, peak, inverse_temperature, V, block)
    if top_p < 1.0:
        high = peak
        for _ in range(rounds):
            middle = (low + high) / 2
            _number, left = _above(row, middle, peak, inverse_temperature, V, block)
            enough = left >= top_p * total
            low, high = tl.where(enough, middle, low), tl.where(enough, high, middle)
    tl.store(floors + r, low)


@triton.jit
def _pick(
    logits, floors, lse, most, mass, slots, uniforms, step, ends, limits,
    tokens, logprobs, current, running,
    inverse_temperature, V, blocks, room, num_ends, offset,
    cut: tl.constexpr, block: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, padded)
    peak, weights = _total(most, mass, r, blocks, padded)
    total = tl.sum(weights, 0)
    slot = tl.load(slots + r)
    t = tl.load(step) + offset
    height = tl.load(uniforms + slot * room + t) * total

    passed = (tl.cumsum(weights, 0) <= height) & (b < blocks)
    found = tl.minimum(tl.sum(passed.to(tl.int32), 0), tl.max(tl.where(weights > 0, b, 0), 0))
    before = tl.sum(tl.where(b < found, weights, 0.0), 0)

    i = tl.arange(0, block)
    v = found * block + i
    z = tl.load(logits + r * V + v, mask=v < V, other=float("-inf")).to(tl.float32)
    z = z * inverse_temperature
    p = tl.exp(z - peak)
    whole = peak + tl.log(total)
    if cut:
        p = tl.where(z >= tl.load(floors + r), p, 0.0)
        whole = tl.load(lse + r)
    inside = tl.sum((before + tl.cumsum(p, 0) <= height).to(tl.int32), 0)
    inside = tl.minimum(inside, tl.max(tl.where(p > 0, i, 0), 0))  # rounding at the very end
    token = found * block + inside
    logprob = tl.sum(tl.where(i == inside, z, 0.0), 0) - whole

    tl.store(tokens + slot * room + t, token.to(tl.int64))
    tl.store(logprobs + slot * room + t, logprob)
    tl.store(current + r, token.to(tl.int64))
    going = tl.load(running + r) & (t + 1 < tl.load(limits + slot)).to(tl.int1)
    for e in range(num_ends):
        going = going & (token != tl.load(ends + e))
    tl.store(running + r, going)


def draw_tokens(
    logits_RV: Tensor, slots: Tensor, uniforms: Tensor, step: Tensor, ends: Tensor, limits: Tensor,
    tokens: Tensor, logprobs: Tensor, current: Tensor, running: Tensor,
    *, temperature: float, top_p: float, top_k: int, offset: int,
) -> None:  # fmt: skip
    """Draw token `step + offset` of every row and keep the books of `sample/kv_slots.py`."""
    R, V = logits_RV.shape
    blocks, scale = triton.cdiv(V, BLOCK), 1 / temperature
    padded = triton.next_power_of_2(blocks)
    cut = top_p < 1.0 or 0 < top_k < V
    most, mass = torch.empty(2, R, blocks, dtype=torch.float32, device=logits_RV.device)
    floors, lse = torch.empty(2, R, dtype=torch.float32, device=logits_RV.device)
    _peaks[(R, blocks)](logits_RV, floors, most, mass, scale, V, blocks, cut=False, block=BLOCK)
    if cut:
        _floor[(R,)](
            logits_RV, most, mass, floors, lse, scale, V, blocks, float(top_p), top_k, BISECTION_ROUNDS,
            LOGIT_SPAN, block=2 * BLOCK, padded=padded, num_warps=8,
        )  # fmt: skip
        _peaks[(R, blocks)](logits_RV, floors, most, mass, scale, V, blocks, cut=True, block=BLOCK)
    _pick[(R,)](
        logits_RV, floors, lse, most, mass, slots, uniforms, step, ends, limits,
        tokens, logprobs, current, running,
        scale, V, blocks, uniforms.shape[1], len(ends), offset,
        cut=cut, block=BLOCK, padded=padded,
    )  # fmt: skip
