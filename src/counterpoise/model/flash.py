"""Flash attention over packed rows in which the responses of a prompt share its keys and values.

    tokens      prompts p | q | ...     then responses  a b c (of p) | d e f (of q) | ...
    itself      every segment looks at its own past                      one causal call
    prompt      the responses of a prompt, as one long query, look at it  one more call

A response's token needs the softmax over both sets of keys. With l = logsumexp of the scores,

    o = exp(l1 - l) o1 + exp(l2 - l) o2,        l = log(exp l1 + exp l2)

and the backward pass of either part is flash attention's own, handed the *joined* o and l: it
recomputes probabilities as exp(score - l), which then are those of the whole softmax. So a prompt
is read once for all its responses, nothing is copied or padded, and the gradient is exact. The
order of summation in flash attention's backward pass is not fixed (`update/repeatable.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from counterpoise.model.packing import Packing
from counterpoise.model.transfer import to_device


@dataclass(frozen=True, slots=True, eq=False)
class PackedSegments:
    """Where sequences begin and end among the packed tokens, as flash attention wants it."""

    prompt_tokens: int  # they come first
    all_bounds: Tensor  # int32 bounds of all prompts and responses
    longest_segment: int
    prompt_bounds: Tensor  # bounds of the prompts
    longest_prompt: int
    reader_bounds: (
        Tensor | None
    )  # bounds of the responses of each prompt, counted from the first of them
    longest_reader: int


def supports_head_dim(head_dim: int) -> bool:
    """Heads that torch's flash attention has kernels for."""
    return head_dim % 8 == 0 and head_dim <= 256


def find_segments(packing: Packing) -> PackedSegments | None:
    """None where the responses of a prompt are not side by side, prompt after prompt."""
    if any(a > b for a, b in zip(packing.parents, packing.parents[1:], strict=False)):
        return None
    prompts = [length for _, length in packing.prompts]
    responses = [length for _, length in packing.responses]
    read = np.bincount(packing.parents, weights=responses, minlength=len(prompts)).astype(int)
    device = packing.tokens_N.device
    return PackedSegments(
        prompt_tokens=sum(prompts),
        all_bounds=_bounds([*prompts, *(length for length in responses if length)], device),
        longest_segment=max((*prompts, *responses)),
        prompt_bounds=_bounds(prompts, device),
        longest_prompt=max(prompts),
        reader_bounds=_bounds(read.tolist(), device) if sum(responses) else None,
        longest_reader=int(read.max()),
    )


def _bounds(lengths: Sequence[int], device: torch.device) -> Tensor:
    return to_device(np.cumsum([0, *lengths]), device, np.int32)


def flash_forward(
    q: Tensor, k: Tensor, v: Tensor, segments: PackedSegments
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """q [N, H, d], k and v [N, K, d] -> (o [N, H, d], l [H, N], what the backward wants again)"""
    from counterpoise.model.kernels.merge import merge

    P = segments.prompt_tokens
    out, lse, state = _forward(q, k, v, *_itself(segments))
    if segments.reader_bounds is None:
        return out, lse, state
    beside, lse_beside, _ = _forward(q[P:], k[:P], v[:P], *_prompt(segments))
    joined = lse.clone()
    merge(out[P:], lse[:, P:], beside, lse_beside, into=joined[:, P:])
    return out, joined, state


def flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    state: tuple[Tensor, Tensor], segments: PackedSegments,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k and v."""
    P = segments.prompt_tokens
    dq, dk, dv = _backward(grad, q, k, v, out, lse, *_itself(segments), state)
    if segments.reader_bounds is not None:
        more = _backward(
            grad[P:],
            q[P:],
            k[:P],
            v[:P],
            out[P:],
            lse[:, P:].contiguous(),
            *_prompt(segments),
            state,
        )
        for whole, part in ((dq[P:], more[0]), (dk[:P], more[1]), (dv[:P], more[2])):
            whole += part
    return dq, dk, dv


AttentionCall = tuple[
    Tensor, Tensor, int, int, bool
]  # bounds of queries and keys, longest of each, causal


def _itself(at: PackedSegments) -> AttentionCall:
    return at.all_bounds, at.all_bounds, at.longest_segment, at.longest_segment, True


def _prompt(at: PackedSegments) -> AttentionCall:
    assert at.reader_bounds is not None
    return at.reader_bounds, at.prompt_bounds, at.longest_reader, at.longest_prompt, False


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    by_q: Tensor,
    by_k: Tensor,
    most_q: int,
    most_k: int,
    causal: bool,
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """(out [N, H, d], logsumexp [H, N], what the backward call wants to see again)"""
    out, lse, seed, unused, _ = torch.ops.aten._flash_attention_forward(
        q, k, v, by_q, by_k, most_q, most_k, 0.0, causal, False
    )
    return out, lse, (seed, unused)


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    by_q: Tensor, by_k: Tensor, most_q: int, most_k: int, causal: bool, state: Sequence[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._flash_attention_backward(
        grad, q, k, v, out, lse, by_q, by_k, most_q, most_k, 0.0, causal, *state
    )
    return found
