"""Flash attention over packed rows in which the responses of a prompt share its keys and values.

    tokens      prompts p | q | ...     then responses  a b c (of p) | d e f (of q) | ...
    call 1      every segment attends to its own past, causally
    call 2      the responses of a prompt, as one long query, attend to the prompt

A response token needs the softmax over both sets of keys. With l = logsumexp of the scores,

    o = exp(l1 - l) o1 + exp(l2 - l) o2,        l = log(exp l1 + exp l2)

The backward pass of either call is flash attention's own, given the *joint* o and l: it recomputes
probabilities as exp(score - l), which then are those of the joint softmax. So a prompt is read once
for all its responses, nothing is copied or padded, and the gradient is exact. The order of
summation in flash attention's backward pass is not fixed (`update/repeatable.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from counterpoise.model.packing import Packing
from counterpoise.model.transfer import to_device

# The random state of the forward call, which its backward call expects.
FlashState = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class PackedSegments:
    """Where sequences begin and end among the packed tokens, as flash attention wants it."""

    prompt_tokens: int  # number of prompt tokens; they come first
    all_bounds: Tensor  # int32 bounds of all prompts and responses
    longest_segment: int
    prompt_bounds: Tensor  # bounds of the prompts
    longest_prompt: int
    # The responses of a prompt, as one long query, are its reader. Bounds of all readers among the
    # response tokens; None without responses.
    reader_bounds: Tensor | None
    longest_reader: int


class FlashOutputs(NamedTuple):
    """What attention returns, and what its backward pass needs."""

    out: Tensor  # [N, H, d]
    lse: Tensor  # [H, N] logsumexp of the scores
    state: FlashState


class AttentionCall(NamedTuple):
    """Which queries attend to which keys in one call of flash attention."""

    query_bounds: Tensor
    key_bounds: Tensor
    longest_query: int
    longest_key: int
    causal: bool


def supports_head_dim(head_dim: int) -> bool:
    """Whether torch's flash attention has kernels for heads of this size."""
    return head_dim % 8 == 0 and head_dim <= 256


def find_segments(packing: Packing) -> PackedSegments | None:
    """The segments of a packing; None unless responses follow in the order of their prompts."""
    if any(parent > next_parent for parent, next_parent in pairwise(packing.parents)):
        return None
    prompt_lengths = [length for _, length in packing.prompts]
    response_lengths = [length for _, length in packing.responses]
    reader_lengths = np.bincount(
        packing.parents, weights=response_lengths, minlength=len(prompt_lengths)
    ).astype(int)
    device = packing.tokens_N.device
    return PackedSegments(
        prompt_tokens=sum(prompt_lengths),
        all_bounds=_bounds(
            [*prompt_lengths, *(length for length in response_lengths if length)], device
        ),
        longest_segment=max((*prompt_lengths, *response_lengths)),
        prompt_bounds=_bounds(prompt_lengths, device),
        longest_prompt=max(prompt_lengths),
        reader_bounds=_bounds(reader_lengths.tolist(), device) if sum(response_lengths) else None,
        longest_reader=int(reader_lengths.max()),
    )


def _bounds(lengths: Sequence[int], device: torch.device) -> Tensor:
    """Where sequences of these lengths begin, and the end of the last."""
    return to_device(np.cumsum([0, *lengths]), device, np.int32)


def flash_forward(q: Tensor, k: Tensor, v: Tensor, segments: PackedSegments) -> FlashOutputs:
    """q [N, H, d], k and v [N, K, d] -> outputs of all packed tokens."""
    from counterpoise.model.kernels.merge import merge

    prompts, responses = _token_slices(segments)
    out, lse, state = _forward(q, k, v, _call_within_segments(segments))
    if segments.reader_bounds is None:
        return FlashOutputs(out, lse, state)
    to_prompts = _forward(q[responses], k[prompts], v[prompts], _call_to_prompts(segments))
    # The merge kernel must not write where it still reads, so the joint lse has its own memory.
    joint_lse = lse.clone()
    merge(
        out[responses],
        lse[:, responses],
        to_prompts.out,
        to_prompts.lse,
        into=joint_lse[:, responses],
    )
    return FlashOutputs(out, joint_lse, state)


def flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, outputs: FlashOutputs, segments: PackedSegments
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    prompts, responses = _token_slices(segments)
    dq, dk, dv = _backward(grad, q, k, v, outputs, _call_within_segments(segments))
    if segments.reader_bounds is not None:
        response_outputs = FlashOutputs(
            outputs.out[responses], outputs.lse[:, responses].contiguous(), outputs.state
        )
        prompt_dq, prompt_dk, prompt_dv = _backward(
            grad[responses],
            q[responses],
            k[prompts],
            v[prompts],
            response_outputs,
            _call_to_prompts(segments),
        )
        dq[responses] += prompt_dq
        dk[prompts] += prompt_dk
        dv[prompts] += prompt_dv
    return dq, dk, dv


class FlashAttention(torch.autograd.Function):
    """(q [N, H, d], k and v [N, K, d], segments) -> [N, H, d], for layers that autograd walks."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, segments: PackedSegments) -> Tensor:
        outputs = flash_forward(q, k, v, segments)
        ctx.save_for_backward(q, k, v, outputs.out, outputs.lse, *outputs.state)
        ctx.segments = segments
        return outputs.out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, out, lse, *state = ctx.saved_tensors
        outputs = FlashOutputs(out, lse, (state[0], state[1]))
        return *flash_backward(grad.contiguous(), q, k, v, outputs, ctx.segments), None


def _token_slices(segments: PackedSegments) -> tuple[slice, slice]:
    """The prompt tokens and the response tokens among all packed tokens."""
    return slice(segments.prompt_tokens), slice(segments.prompt_tokens, None)


def _call_within_segments(segments: PackedSegments) -> AttentionCall:
    """Every segment attends to its own past."""
    bounds, longest = segments.all_bounds, segments.longest_segment
    return AttentionCall(bounds, bounds, longest, longest, causal=True)


def _call_to_prompts(segments: PackedSegments) -> AttentionCall:
    """All responses of a prompt, as one long query, attend to the whole prompt."""
    assert segments.reader_bounds is not None
    return AttentionCall(
        query_bounds=segments.reader_bounds,
        key_bounds=segments.prompt_bounds,
        longest_query=segments.longest_reader,
        longest_key=segments.longest_prompt,
        causal=False,
    )


def _forward(q: Tensor, k: Tensor, v: Tensor, call: AttentionCall) -> FlashOutputs:
    dropout, return_debug_mask = 0.0, False
    out, lse, seed, unused, _ = torch.ops.aten._flash_attention_forward(
        q, k, v, *call[:4], dropout, call.causal, return_debug_mask
    )
    return FlashOutputs(out, lse, (seed, unused))


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, outputs: FlashOutputs, call: AttentionCall
) -> tuple[Tensor, Tensor, Tensor]:
    dropout = 0.0
    gradients: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._flash_attention_backward(
        grad, q, k, v, outputs.out, outputs.lse, *call[:4], dropout, call.causal, *outputs.state
    )
    return gradients
