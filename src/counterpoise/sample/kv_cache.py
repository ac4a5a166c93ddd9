"""The KV cache of the CPU sampler: all rows write the same column, whenever they started.

    column      0  1  2  3 | 4  5  6  7 ...       prefixes of up to 4 columns, then new tokens
    row a       .  p  p  p | a  a  a  a           '.' is padding, always masked
    row b       p  p  p  p | b  b                 b has finished after column 5 ...
    row c       .  .  .  p   p  p  c  c           ... and c takes its place: its prefix ends in
                                                  column 5 too, and all rows write column 6 next

Every sequence is prefilled once. A token's keys and values do not depend on later tokens, so a row
may start from any prefix of a sequence. When the columns run out, the last ones move to the front:
those in use, and at least as many as the longest prefix has, so that any waiting row can still end
its prefix where the others write next.

Suffixes and sizes: N prefilled tokens, R rows, S prefix columns, H query heads, K key/value heads,
d numbers of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from counterpoise.model.attention import PackedAttention
from counterpoise.model.decoder import Decoder
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


def prefill(decoder: Decoder, sequences: Sequence[Ints]) -> Prefill:
    """Run the decoder over the sequences once and keep what decoding needs."""
    packing = pack_prompts(sequences, decoder.device)
    recording = RecordingAttention(PackedAttention(packing))
    hidden_N = decoder(packing.tokens_N, packing.positions_N, recording)
    starts = tuple(start for start, _ in packing.prompts)
    return Prefill(starts, hidden_N, recording.keys, recording.values)


class KVCache:
    """An `attend` function for `Decoder` that decodes one token per row and call."""

    def __init__(self, decoder: Decoder, num_rows: int, longest_prefix: int, columns: int) -> None:
        """Empty places. The prefixes of the rows placed first end at column `longest_prefix`.

        No row may have a longer prefix, and `columns` must hold that prefix and the new tokens of
        any row.
        """
        device = decoder.device
        self.longest_prefix = longest_prefix
        # Columns in use, the same for all rows; never fewer than `longest_prefix`.
        self.length = longest_prefix
        self.first_column = 0  # attention starts here
        self.columns = columns
        self.row_starts = torch.zeros(num_rows, dtype=torch.long, device=device)
        # [R, 1, 1, columns], or None if nothing is padded: attention without a mask is faster.
        self.is_token: Tensor | None = None
        # Zeros instead of uninitialised memory: a masked column has weight 0, and 0 * NaN is NaN.
        shape = num_rows, decoder.kv_heads, columns, decoder.head_dim

        def allocate() -> list[Tensor]:
            return [torch.zeros(shape, dtype=decoder.dtype, device=device) for _ in decoder.layers]

        self.keys, self.values = allocate(), allocate()

    def place_rows(
        self, places: Tensor, prefilled: Prefill, starts_R: Tensor, lengths_R: Tensor
    ) -> None:
        """Start rows in these places.

        The prefix of row r is the `lengths_R[r]` prefilled tokens from `starts_R[r]` on. Whatever
        row had the place before is gone.
        """
        S, device = int(lengths_R.max()), lengths_R.device
        offset = torch.arange(S, device=device)[None] - (S - lengths_R)[:, None]  # < 0: padding
        source = starts_R[:, None] + offset.clamp(min=0)  # [R, S]
        prefix_columns = slice(self.length - S, self.length)
        for caches, recorded in ((self.keys, prefilled.keys), (self.values, prefilled.values)):
            for cache, recorded_N in zip(caches, recorded, strict=True):
                cache[places, :, prefix_columns] = recorded_N[source].transpose(1, 2)
        self.row_starts[places] = self.length - lengths_R
        if self.is_token is None and bool((self.row_starts[places] > 0).any()):
            mask_shape = len(self.row_starts), 1, 1, self.columns
            self.is_token = torch.ones(mask_shape, dtype=torch.bool, device=device)
        if self.is_token is not None:
            column = torch.arange(self.columns, device=device)
            self.is_token[places] = (column >= self.row_starts[places, None])[:, None, None]

    def skip_unused_columns(self) -> None:
        """Let attention start at the earliest column of any row."""
        self.first_column = int(self.row_starts.min())

    @property
    def is_full(self) -> bool:
        """Whether `advance` has to move the columns in use to the front."""
        return self.length == self.columns

    def advance(self) -> None:
        """Open the next column of every row; call it before each decoding pass."""
        if self.is_full:
            self._move_to_front()
        self.length += 1

    def _move_to_front(self) -> None:
        # A row that is placed later needs room for its prefix, even if all rows now are shorter.
        num_dropped = min(int(self.row_starts.min()), self.length - self.longest_prefix)
        num_kept = self.length - num_dropped
        masks = () if self.is_token is None else (self.is_token,)
        for tensor in (*self.keys, *self.values, *(mask.transpose(2, 3) for mask in masks)):
            tensor[:, :, :num_kept] = tensor[:, :, num_dropped:].clone()
        for mask in masks:
            mask[..., num_kept:] = True
        self.row_starts -= num_dropped
        self.length = num_kept
        self.skip_unused_columns()

    def keep_rows(self, rows: Tensor) -> None:
        """Drop all rows but these."""
        self.keys = [k.index_select(0, rows) for k in self.keys]
        self.values = [v.index_select(0, rows) for v in self.values]
        self.row_starts = self.row_starts.index_select(0, rows)
        if self.is_token is not None:
            self.is_token = self.is_token.index_select(0, rows)

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None = None
    ) -> Tensor:
        keys, values, L = self.keys[layer], self.values[layer], self.length
        # Columns of a row are consecutive positions, so a window is the last columns in use.
        start = self.first_column if window is None else max(self.first_column, L - window)
        keys[:, :, L - 1] = k
        values[:, :, L - 1] = v
        R, H, d = q.shape
        # The query heads of one key head stand in for query positions, so that keys and values need
        # not be repeated for each query head.
        grouped_q = q.view(R, keys.shape[1], -1, d)
        mask = None if self.is_token is None else self.is_token[..., start:L]
        return F.scaled_dot_product_attention(
            grouped_q, keys[:, :, start:L], values[:, :, start:L], attn_mask=mask
        ).reshape(R, H, d)
