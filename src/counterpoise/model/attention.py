"""Attention inside a packed batch: prompts look at themselves, responses at their prompt too.

On a GPU in half precision flash attention takes the packed tokens as they are (`model/flash.py`).
Elsewhere segments are laid side by side, padded to the longest, because that is the shape torch's
attention takes. A token maps to one padded slot and back, so padding can reach neither outputs nor
gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from counterpoise.model.flash import PackedSegments, find_segments, flash_forward, supports_head_dim
from counterpoise.model.kernels import uses_kernels
from counterpoise.model.packing import Packing


class PackedAttention:
    """An `attend` for `Decoder`: causal within each sequence, blind to its neighbours."""

    def __init__(self, packing: Packing, known_segments: PackedSegments | None = None) -> None:
        """`known_segments`: the segments, where they are not to be read off the packing."""
        self.packing = packing
        if known_segments is not None:
            self.segments = known_segments

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if uses_kernels(q) and supports_head_dim(q.shape[-1]) and self.segments is not None:
            return flash_forward(q, k, v, self.segments)[0]
        return self._padded(layer, q, k, v)

    @cached_property
    def segments(self) -> PackedSegments | None:
        """For flash attention; None where the packing does not suit it."""
        return find_segments(self.packing)

    @cached_property
    def _padded(self) -> PaddedAttention:
        return PaddedAttention(self.packing)


class PaddedAttention:
    """The same by torch's own attention, segments padded to the longest."""

    def __init__(self, packing: Packing) -> None:
        device = packing.tokens_N.device
        pairs = zip(packing.responses, packing.parents, strict=True)
        spans = [
            (span, parent) for span, parent in pairs if span[1]
        ]  # one-token responses are empty
        self.prompt_slots = _slots(packing.prompts, device)  # [P, S]
        self.back_N = _back(packing.prompts, device)
        self.has_responses = bool(spans)
        if self.has_responses:
            responses, parents = [span for span, _ in spans], [parent for _, parent in spans]
            self.response_slots = _slots(responses, device)  # [R, T]
            back = _back(responses, device) + self.prompt_slots.numel()
            self.back_N = torch.cat((self.back_N, back))
            prompt_of_R = self.prompt_slots[torch.tensor(parents, device=device)]
            self.context_slots = torch.cat((prompt_of_R, self.response_slots), dim=1)  # [R, S + T]
            self.mask = self._response_mask(packing, parents, device)

    def _response_mask(
        self, packing: Packing, parents: Sequence[int], device: torch.device
    ) -> Tensor:
        """[R, 1, T, S + T]: a response token sees its whole prompt and its own past."""
        S, T = self.prompt_slots.shape[1], self.response_slots.shape[1]
        lengths = torch.tensor([packing.prompts[p][1] for p in parents], device=device)
        prompt_part = (
            torch.arange(S, device=device)[None, None] < lengths[:, None, None]
        )  # [R, 1, S]
        own_part = torch.ones(T, T, dtype=torch.bool, device=device).tril()[None]  # [1, T, T]
        R = len(parents)
        return torch.cat((prompt_part.expand(R, T, S), own_part.expand(R, T, T)), dim=2)[:, None]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        q_P, k_P, v_P = (gather_rows(x, self.prompt_slots) for x in (q, k, v))  # [P, S, H, d]
        mixed = _sdpa(q_P, k_P, v_P, None).flatten(0, 1)
        if self.has_responses:
            q_R = gather_rows(q, self.response_slots)
            k_R, v_R = (gather_rows(x, self.context_slots) for x in (k, v))  # [R, S + T, H, d]
            mixed = torch.cat((mixed, _sdpa(q_R, k_R, v_R, self.mask).flatten(0, 1)))
        return mixed.index_select(0, self.back_N)


def gather_rows(x: Tensor, slots: Tensor) -> Tensor:
    """x[slots]; index_select has the quicker backward."""
    return x.index_select(0, slots.flatten()).view(*slots.shape, *x.shape[1:])


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """[B, T, H, d] in and out; causal when there is no mask."""
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=mask is None,
    )
    return out.transpose(1, 2)


def _slots(spans: Sequence[tuple[int, int]], device: torch.device) -> Tensor:
    """[B, L] indices into the flat tokens; padding repeats a segment's last token."""
    longest = max(length for _, length in spans)
    starts = torch.tensor([start for start, _ in spans], device=device)
    lengths = torch.tensor([length for _, length in spans], device=device)
    within = torch.arange(longest, device=device)[None].expand(len(spans), longest)
    return starts[:, None] + torch.minimum(within, lengths[:, None] - 1)


def _back(spans: Sequence[tuple[int, int]], device: torch.device) -> Tensor:
    """For every token of the segments, in flat order, its index in the padded [B * L]."""
    longest = max(length for _, length in spans)
    parts = [torch.arange(length) + b * longest for b, (_, length) in enumerate(spans)]
    return torch.cat(parts).to(device)
