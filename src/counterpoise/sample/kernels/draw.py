"""Sample one token per row without sorting; `sample/choose_token.py` has the formula.

    peaks      for every row and block of the vocabulary: maximum, sum of exp
    floor      only with top-k or top-p: the smallest logit that may be drawn, found by bisection
    pick       the block in which the cumulative sum passes u, and the token inside that block

Without a floor the vocabulary is read once, and one block of it twice. `pick` also updates the
row's state (`sample/kv_slots.py`): it stores the token and its log-probability, moves the row on,
and stops it after an end token or at its limit. The state of a row that has stopped stays as it is.
All tokens tied with the floor are kept; logits that differ by less than 1e-6 may count as tied.

Names: R rows, V vocabulary; `most` and `mass` are the maximum and the sum of exp of each block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # vocabulary entries of one program
LOGIT_SPAN = 60.0  # exp(-60) relative to the largest weight is lost in a float32 sum
BISECTION_ROUNDS = 26  # finds the floor to LOGIT_SPAN / 2^26, about 1e-6


@triton.jit
def _peaks(
    logits, floors, most, mass, inverse_temperature, V, blocks, cut: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    r, b = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = b * block + tl.arange(0, block)
    logit = tl.load(logits + r * V + token, mask=token < V, other=float("-inf")).to(tl.float32)
    logit = logit * inverse_temperature
    if cut:
        logit = tl.where(logit >= tl.load(floors + r), logit, float("-inf"))
    peak = tl.max(logit, 0)
    tl.store(most + r * blocks + b, peak)
    weights = tl.where(logit > float("-inf"), tl.exp(logit - peak), 0.0)
    tl.store(mass + r * blocks + b, tl.sum(weights, 0))


@triton.jit
def _block_weights(most, mass, r, blocks, padded: tl.constexpr):
    """(largest logit of the row, the blocks' sums relative to it)"""
    b = tl.arange(0, padded)
    peaks = tl.load(most + r * blocks + b, mask=b < blocks, other=float("-inf"))
    sums = tl.load(mass + r * blocks + b, mask=b < blocks, other=0.0)
    peak = tl.max(peaks, 0)
    return peak, tl.where(sums > 0, sums * tl.exp(peaks - peak), 0.0)


@triton.jit
def _above(row, floor, peak, inverse_temperature, V, block: tl.constexpr):
    """(count, mass) of the tokens at or above a floor"""
    count = tl.zeros([block], tl.float32)
    mass = tl.zeros([block], tl.float32)
    for start in range(0, V, block):
        token = start + tl.arange(0, block)
        logit = tl.load(row + token, mask=token < V, other=float("-inf")).to(tl.float32)
        logit = logit * inverse_temperature
        count += tl.where(logit >= floor, 1.0, 0.0)
        mass += tl.where(logit >= floor, tl.exp(logit - peak), 0.0)
    return tl.sum(count, 0), tl.sum(mass, 0)


@triton.jit
def _floor(
    logits, most, mass, floors, lse, inverse_temperature, V, blocks, top_p, top_k, rounds, span,
    block: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    """The largest floor that leaves top_k tokens, then one that leaves top_p of their mass."""
    r = tl.program_id(0).to(tl.int64)
    peak, weights = _block_weights(most, mass, r, blocks, padded)
    total = tl.sum(weights, 0)
    tl.store(lse + r, peak + tl.log(total))
    row = logits + r * V
    low = peak - span
    # Invariant of both bisections: the floor `low` keeps enough, the floor `high` may not.
    if top_k > 0:
        high = peak
        for _ in range(rounds):
            middle = (low + high) / 2
            count, _mass = _above(row, middle, peak, inverse_temperature, V, block)
            enough = count >= top_k
            low, high = tl.where(enough, middle, low), tl.where(enough, high, middle)
        _count, total = _above(row, low, peak, inverse_temperature, V, block)
    if top_p < 1.0:
        high = peak
        for _ in range(rounds):
            middle = (low + high) / 2
            _count, kept_mass = _above(row, middle, peak, inverse_temperature, V, block)
            enough = kept_mass >= top_p * total
            low, high = tl.where(enough, middle, low), tl.where(enough, high, middle)
    tl.store(floors + r, low)


@triton.jit
def _pick(
    logits, floors, lse, most, mass, slots, uniforms, prefix_lengths, end_tokens, limits,
    tokens, logprobs, current, positions, running,
    inverse_temperature, V, blocks, new_tokens, num_end_tokens, offset,
    cut: tl.constexpr, block: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, padded)
    peak, weights = _block_weights(most, mass, r, blocks, padded)
    total = tl.sum(weights, 0)
    slot = tl.load(slots + r)
    was_running = tl.load(running + r) != 0
    position = tl.load(positions + r) + offset
    t = position - tl.load(prefix_lengths + slot)
    threshold = tl.load(uniforms + slot * new_tokens + t, mask=was_running, other=0.0) * total

    # Rounding can leave the threshold above the whole cumulative sum. Then the last block that has
    # any weight is taken, and in the code below the last such token.
    passed = (tl.cumsum(weights, 0) <= threshold) & (b < blocks)
    last_block = tl.max(tl.where(weights > 0, b, 0), 0)
    chosen_block = tl.minimum(tl.sum(passed.to(tl.int32), 0), last_block)
    mass_before = tl.sum(tl.where(b < chosen_block, weights, 0.0), 0)

    i = tl.arange(0, block)
    v = chosen_block * block + i
    logit = tl.load(logits + r * V + v, mask=v < V, other=float("-inf")).to(tl.float32)
    logit = logit * inverse_temperature
    weights_in_block = tl.exp(logit - peak)
    log_total = peak + tl.log(total)
    if cut:
        weights_in_block = tl.where(logit >= tl.load(floors + r), weights_in_block, 0.0)
        log_total = tl.load(lse + r)
    index = tl.sum((mass_before + tl.cumsum(weights_in_block, 0) <= threshold).to(tl.int32), 0)
    index = tl.minimum(index, tl.max(tl.where(weights_in_block > 0, i, 0), 0))
    token = chosen_block * block + index
    logprob = tl.sum(tl.where(i == index, logit, 0.0), 0) - log_total

    tl.store(tokens + slot * new_tokens + t, token.to(tl.int64), mask=was_running)
    tl.store(logprobs + slot * new_tokens + t, logprob, mask=was_running)
    tl.store(current + r, token.to(tl.int64), mask=was_running)
    tl.store(positions + r, position, mask=was_running)
    is_running = was_running & (t + 1 < tl.load(limits + slot)).to(tl.int1)
    for e in range(num_end_tokens):
        is_running = is_running & (token != tl.load(end_tokens + e))
    tl.store(running + r, is_running)


def draw_tokens(
    logits_RV: Tensor, slots: Tensor, uniforms: Tensor, prefix_lengths: Tensor, end_tokens: Tensor,
    limits: Tensor, tokens: Tensor, logprobs: Tensor, current: Tensor, positions: Tensor,
    running: Tensor, *, temperature: float, top_p: float, top_k: int, offset: int,
) -> None:  # fmt: skip
    """Sample a token for every row and update the row's state.

    `offset` is added to each row's position: 1 in a decoding step, 0 for a row's first token.
    """
    R, V = logits_RV.shape
    blocks, scale = triton.cdiv(V, BLOCK), 1 / temperature
    padded = triton.next_power_of_2(blocks)
    cut = top_p < 1.0 or 0 < top_k < V
    most, mass = torch.empty(2, R, blocks, dtype=torch.float32, device=logits_RV.device)
    floors, lse = torch.empty(2, R, dtype=torch.float32, device=logits_RV.device)
    _peaks[(R, blocks)](logits_RV, floors, most, mass, scale, V, blocks, cut=False, block=BLOCK)
    # With a cut, `lse` keeps the log-sum-exp of the full distribution for the log-probabilities,
    # and the second run of `_peaks` replaces the blocks' sums by those of the kept tokens.
    if cut:
        _floor[(R,)](
            logits_RV, most, mass, floors, lse, scale, V, blocks, float(top_p), top_k,
            BISECTION_ROUNDS, LOGIT_SPAN, block=2 * BLOCK, padded=padded, num_warps=8,
        )  # fmt: skip
        _peaks[(R, blocks)](logits_RV, floors, most, mass, scale, V, blocks, cut=True, block=BLOCK)
    _pick[(R,)](
        logits_RV, floors, lse, most, mass, slots, uniforms, prefix_lengths, end_tokens, limits,
        tokens, logprobs, current, positions, running,
        scale, V, blocks, uniforms.shape[1], len(end_tokens), offset,
        cut=cut, block=BLOCK, padded=padded,
    )  # fmt: skip
