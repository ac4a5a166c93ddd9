"""Attention over a packed batch: prompts attend to themselves, responses also to their prompt.

On a GPU in half precision flash attention takes the packed tokens as they are (`model/flash.py`).
Elsewhere segments are padded to the longest and stacked, the shape that torch's attention takes.
Every token maps to one padded slot and back, so padding can reach neither outputs nor gradients.

Sizes: N packed tokens, P prompts, S tokens of the longest prompt, R responses, T tokens of the
longest response, H query heads, d numbers of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from counterpoise.model.flash import (
    FlashAttention,
    PackedSegments,
    find_segments,
    flash_forward,
    supports_head_dim,
)
from counterpoise.model.kernels import is_half_on_gpu
from counterpoise.model.packing import Packing


class PackedAttention:
    """An `attend` function for `Decoder`: causal within each sequence, blind to other sequences."""

    def __init__(self, packing: Packing, known_segments: PackedSegments | None = None) -> None:
        """`known_segments` replaces the segments that would be derived from the packing."""
        self.packing = packing
        if known_segments is not None:
            self.segments = known_segments

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None = None
    ) -> Tensor:
        can_use_flash = is_half_on_gpu(q) and supports_head_dim(q.shape[-1]) and window is None
        if not can_use_flash or self.segments is None:
            return self._padded(layer, q, k, v, window)
        if not torch.is_grad_enabled():
            return flash_forward(q, k, v, self.segments).out
        attended: Tensor = FlashAttention.apply(q, k, v, self.segments)
        return attended

    @cached_property
    def segments(self) -> PackedSegments | None:
        """The segments for flash attention; None if the order of the rows does not suit it."""
        return find_segments(self.packing)

    @cached_property
    def _padded(self) -> PaddedAttention:
        return PaddedAttention(self.packing)


class PaddedAttention:
    """The same computation by torch's own attention, segments padded to the longest."""

    def __init__(self, packing: Packing) -> None:
        device = packing.tokens_N.device
        self.longest_row = packing.longest
        # Masks of prompts and responses for each window that is shorter than the longest row.
        self._window_masks: dict[int, tuple[Tensor, Tensor | None]] = {}
        span_parents = zip(packing.responses, packing.parents, strict=True)
        # A response of one token has none to read: its only token is predicted by the prompt.
        nonempty_responses = [(span, parent) for span, parent in span_parents if span[1]]
        # Queries, keys and values are gathered by *_slots; outputs return by `slot_of_token_N`.
        self.prompt_slots = _slots(packing.prompts, device)  # [P, S]
        self.slot_of_token_N = _slots_of_tokens(packing.prompts, device)
        self.has_responses = bool(nonempty_responses)
        if self.has_responses:
            responses = [span for span, _ in nonempty_responses]
            parents = [parent for _, parent in nonempty_responses]
            self.response_slots = _slots(responses, device)  # [R, T]
            # The padded responses follow the padded prompts.
            response_slot_of_token = _slots_of_tokens(responses, device) + self.prompt_slots.numel()
            self.slot_of_token_N = torch.cat((self.slot_of_token_N, response_slot_of_token))
            prompt_of_R = self.prompt_slots[torch.tensor(parents, device=device)]
            self.context_slots = torch.cat((prompt_of_R, self.response_slots), dim=1)  # [R, S + T]
            prompt_lengths = [packing.prompts[parent][1] for parent in parents]
            self.prompt_length_R11 = torch.tensor(prompt_lengths, device=device)[:, None, None]
            self.mask = self._response_mask()

    def _response_mask(self) -> Tensor:
        """Mask [R, 1, T, S + T]: a response token sees its whole prompt and its own past."""
        S, T, device = self.prompt_slots.shape[1], self.response_slots.shape[1], self._device
        sees_prompt_R1S = torch.arange(S, device=device)[None, None] < self.prompt_length_R11
        sees_response_1TT = torch.ones(T, T, dtype=torch.bool, device=device).tril()[None]
        R = len(sees_prompt_R1S)
        visible = torch.cat((sees_prompt_R1S.expand(R, T, S), sees_response_1TT.expand(R, T, T)), 2)
        return visible[:, None]

    def _masks(self, window: int | None) -> tuple[Tensor | None, Tensor | None]:
        """Masks of prompts and of responses; None is causal. A window hides what lies before it."""
        full_mask = self.mask if self.has_responses else None
        if window is None or window >= self.longest_row:
            return None, full_mask
        if window not in self._window_masks:
            S = self.prompt_slots.shape[1]
            index_S = torch.arange(S, device=self._device)
            distance_SS = index_S[:, None] - index_S
            prompt_mask = (distance_SS >= 0) & (distance_SS < window)
            response_mask = None
            if full_mask is not None:
                index_T = torch.arange(self.response_slots.shape[1], device=self._device)
                position_RT1 = self.prompt_length_R11 + index_T[:, None]
                own_position_R1T = self.prompt_length_R11 + index_T
                key_position_R1L = torch.cat(
                    (index_S.expand(len(own_position_R1T), 1, S), own_position_R1T), dim=2
                )
                in_window = position_RT1 - key_position_R1L < window
                response_mask = full_mask & in_window[:, None]
            self._window_masks[window] = prompt_mask, response_mask
        return self._window_masks[window]

    @property
    def _device(self) -> torch.device:
        return self.prompt_slots.device

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None = None
    ) -> Tensor:
        prompt_mask, response_mask = self._masks(window)
        queries_per_key = q.shape[1] // k.shape[1]
        k = k.repeat_interleave(queries_per_key, dim=1)
        v = v.repeat_interleave(queries_per_key, dim=1)
        q_P, k_P, v_P = (gather_rows(x, self.prompt_slots) for x in (q, k, v))  # [P, S, H, d]
        attended = _sdpa(q_P, k_P, v_P, prompt_mask).flatten(0, 1)
        if self.has_responses:
            q_R = gather_rows(q, self.response_slots)
            k_R, v_R = (gather_rows(x, self.context_slots) for x in (k, v))  # [R, S + T, H, d]
            attended = torch.cat((attended, _sdpa(q_R, k_R, v_R, response_mask).flatten(0, 1)))
        return attended.index_select(0, self.slot_of_token_N)


def gather_rows(values: Tensor, slots: Tensor) -> Tensor:
    """values[slots], by index_select because its backward pass is faster."""
    return values.index_select(0, slots.flatten()).view(*slots.shape, *values.shape[1:])


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """[B, T, H, d] in and out; causal when there is no mask."""
    attended = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=mask is None,
    )
    return attended.transpose(1, 2)


def _slots(spans: Sequence[tuple[int, int]], device: torch.device) -> Tensor:
    """Indices [B, L] into the packed tokens; padding repeats a segment's last token."""
    longest = max(length for _, length in spans)
    starts = torch.tensor([start for start, _ in spans], device=device)
    lengths = torch.tensor([length for _, length in spans], device=device)
    offsets = torch.arange(longest, device=device)[None].expand(len(spans), longest)
    return starts[:, None] + torch.minimum(offsets, lengths[:, None] - 1)


def _slots_of_tokens(spans: Sequence[tuple[int, int]], device: torch.device) -> Tensor:
    """The index in the padded [B * L] of every token of the segments, in packed order."""
    longest = max(length for _, length in spans)
    segment_indices = [
        torch.arange(length) + segment * longest for segment, (_, length) in enumerate(spans)
    ]
    return torch.cat(segment_indices).to(device)
