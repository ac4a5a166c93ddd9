"""The KV cache of the CPU sampler: prefixes are right-aligned so that all rows write the same slot.

    slot        0  1  2  3 | 4  5  6 ...          prefixes of up to 4 slots, then new tokens
    row a       .  p  p  p | a  a                 '.' is padding, always masked
    row b       p  p  p  p | b  b

Every sequence is prefilled once. A token's keys and values do not depend on later tokens, so a row
may start from any prefix of a sequence.

Suffixes and sizes: N prefilled tokens, R rows, S prefix slots, H query heads, K key/value heads,
d numbers of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from counterpoise.model.attention import PackedAttention
from counterpoise.model.general import GeneralDecoder
from counterpoise.model.load import AnyDecoder
from counterpoise.model.packing import pack_prompts
from counterpoise.types import Ints


@dataclass(frozen=True, slots=True)
class Fork:
    """One row to decode: the first `length` tokens of a prefilled sequence, then new tokens.

    Example:
        Fork(sequence=3, length=61, seed=7, max_new_tokens=51)
    """

    sequence: int  # index into the prefilled sequences
    length: int
    seed: int
    max_new_tokens: int
    excluded_token: int | None = None  # the first draw excludes this token and renormalises


class RecordingAttention:
    """Wraps an `attend` function and records the keys and values of every layer."""

    def __init__(self, attend: PackedAttention) -> None:
        self.attend = attend
        self.keys: list[Tensor] = []  # per layer [N, K, d]
        self.values: list[Tensor] = []

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None = None
    ) -> Tensor:
        self.keys.append(k)
        self.values.append(v)
        return self.attend(layer, q, k, v, window)


@dataclass(frozen=True, slots=True, eq=False)
class Prefill:
    """Packed sequences with their hidden states, keys and values."""

    starts: tuple[int, ...]  # index of each sequence's first token among the N tokens
    hidden_N: Tensor  # [N, D]
    keys: list[Tensor]  # per layer [N, K, d]
    values: list[Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class UnreadSequences:
    """Sequences for the general path, which reads a prefix when its rows are decoded."""

    decoder: GeneralDecoder
    sequences: Sequence[Ints]


def prefill(decoder: AnyDecoder, sequences: Sequence[Ints]) -> Prefill | UnreadSequences:
    """Run the decoder over the sequences once and keep what decoding needs."""
    if isinstance(decoder, GeneralDecoder):
        return UnreadSequences(decoder, sequences)
    packing = pack_prompts(sequences, decoder.device)
    recording = RecordingAttention(PackedAttention(packing))
    hidden_N = decoder(packing.tokens_N, packing.positions_N, recording)
    starts = tuple(start for start, _ in packing.prompts)
    return Prefill(starts, hidden_N, recording.keys, recording.values)


class KVCache:
    """An `attend` function for `Decoder` that decodes one token per row and call."""

    def __init__(
        self, prefilled: Prefill, starts_R: Tensor, lengths_R: Tensor, max_new_tokens: int
    ) -> None:
        """Row r starts with the `lengths_R[r]` prefilled tokens from `starts_R[r]` on."""
        S, device = int(lengths_R.max()), lengths_R.device
        offset = torch.arange(S, device=device)[None] - (S - lengths_R)[:, None]  # < 0: padding
        source = starts_R[:, None] + offset.clamp(min=0)  # [R, S]
        in_prefix = offset >= 0
        self.length = S  # slots in use, the same for all rows
        # [R, 1, 1, L], or None if nothing is padded: attention without a mask is faster.
        self.is_token: Tensor | None = None
        if not bool(in_prefix.all()):
            new_slots = torch.ones(len(in_prefix), max_new_tokens, dtype=torch.bool, device=device)
            self.is_token = torch.cat((in_prefix, new_slots), dim=1)[:, None, None]
        self.keys = [self._allocate(k, source, max_new_tokens) for k in prefilled.keys]
        self.values = [self._allocate(v, source, max_new_tokens) for v in prefilled.values]

    @staticmethod
    def _allocate(recorded_N: Tensor, source: Tensor, max_new_tokens: int) -> Tensor:
        """[R, K, S + max_new_tokens, d] with the prefix filled in."""
        R, S = source.shape
        _, K, d = recorded_N.shape
        cache = recorded_N.new_empty(R, K, S + max_new_tokens, d)
        cache[:, :, :S] = recorded_N[source].transpose(1, 2)
        return cache

    def advance(self) -> None:
        """Open the next slot of every row; call it before each decoding pass."""
        self.length += 1

    def keep_rows(self, rows: Tensor) -> None:
        """Drop all rows but these."""
        self.keys = [k.index_select(0, rows) for k in self.keys]
        self.values = [v.index_select(0, rows) for v in self.values]
        if self.is_token is not None:
            self.is_token = self.is_token.index_select(0, rows)

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None = None
    ) -> Tensor:
        keys, values, L = self.keys[layer], self.values[layer], self.length
        # Slots of a row are consecutive positions, so a window is the last slots in use.
        first_slot = 0 if window is None else max(0, L - window)
        keys[:, :, L - 1] = k
        values[:, :, L - 1] = v
        R, H, d = q.shape
        # The query heads of one key head stand in for query positions, so that keys and values need
        # not be repeated for each query head.
        grouped_q = q.view(R, keys.shape[1], -1, d)
        mask = None if self.is_token is None else self.is_token[..., first_slot:L]
        return F.scaled_dot_product_attention(
            grouped_q, keys[:, :, first_slot:L], values[:, :, first_slot:L], attn_mask=mask
        ).reshape(R, H, d)
