"""Keys and values of the rows being decoded, prefixes right-aligned so that all rows write alike.

    slot        0  1  2  3 | 4  5  6 ...          prefixes of up to 4 slots, then what is drawn
    row a       .  p  p  p | a  a                 '.' is padding, masked for good
    row b       p  p  p  p | b  b

Every sequence is computed once. A token's keys and values depend on no later token, so rows may
start from any prefix of it.
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


class RecordingAttention:
    """Wraps an `attend` and keeps the keys and values that pass through it."""

    def __init__(self, attend: PackedAttention) -> None:
        self.attend = attend
        self.keys: list[Tensor] = []  # per layer [N, K, d]
        self.values: list[Tensor] = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.keys.append(k)
        self.values.append(v)
        return self.attend(layer, q, k, v)


@dataclass(frozen=True, slots=True, eq=False)
class Prefill:
    """Sequences side by side, computed once."""

    starts: tuple[int, ...]  # where each sequence begins among the N tokens
    hidden_N: Tensor  # [N, D]
    keys: list[Tensor]  # per layer [N, K, d]
    values: list[Tensor]


def prefill(decoder: Decoder, sequences: Sequence[Ints]) -> Prefill:
    packing = pack_prompts(sequences, decoder.device)
    recorded = RecordingAttention(PackedAttention(packing))
    hidden_N = decoder(packing.tokens_N, packing.positions_N, recorded)
    firsts = tuple(first for first, _ in packing.prompts)
    return Prefill(firsts, hidden_N, recorded.keys, recorded.values)


class KVCache:
    """An `attend` for `Decoder` that decodes one token per row and call."""

    def __init__(self, done: Prefill, firsts_R: Tensor, lengths_R: Tensor, room: int) -> None:
        """Row r starts from the `lengths_R[r]` tokens at `firsts_R[r]` and has room for more."""
        S, device = int(lengths_R.max()), lengths_R.device
        offset = torch.arange(S, device=device)[None] - (S - lengths_R)[:, None]  # < 0: padding
        slots = firsts_R[:, None] + offset.clamp(min=0)  # [R, S]
        real = offset >= 0
        self.length = S
        self.is_token: Tensor | None = None  # [R, 1, 1, L] or None when nothing is padded
        if not bool(real.all()):
            tail = torch.ones(len(real), room, dtype=torch.bool, device=device)
            self.is_token = torch.cat((real, tail), dim=1)[:, None, None]
        self.keys = [self._filled(k, slots, room) for k in done.keys]
        self.values = [self._filled(v, slots, room) for v in done.values]

    @staticmethod
    def _filled(recorded_N: Tensor, slots: Tensor, room: int) -> Tensor:
        """[R, K, S + room, d] with the prefix in place."""
        R, S = slots.shape
        _, K, d = recorded_N.shape
        whole = recorded_N.new_empty(R, K, S + room, d)
        whole[:, :, :S] = recorded_N[slots].transpose(1, 2)
        return whole

    def advance(self) -> None:
        """Make room for the next token of every row; call before each decoding pass."""
        self.length += 1

    def keep_rows(self, rows: Tensor) -> None:
        """Let the other rows leave."""
        self.keys = [k.index_select(0, rows) for k in self.keys]
        self.values = [v.index_select(0, rows) for v in self.values]
        if self.is_token is not None:
            self.is_token = self.is_token.index_select(0, rows)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values, L = self.keys[layer], self.values[layer], self.length
        keys[:, :, L - 1] = k
        values[:, :, L - 1] = v
        R, H, d = q.shape
        folded = q.view(
            R, keys.shape[1], -1, d
        )  # query heads of one key head side by side: no repeats
        mask = None if self.is_token is None else self.is_token[..., :L]
        return F.scaled_dot_product_attention(
            folded, keys[:, :, :L], values[:, :, :L], attn_mask=mask
        ).reshape(R, H, d)
