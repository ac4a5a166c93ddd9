"""Copies of a response that differ from some token on: what comes before is computed once.

    original   p p p p a b c d e f g        keys and values kept, the prompt's once for its group
    copies             . b c d e f          from the first token: everything is computed again
                             . e f          from the fourth: `p p p p a b c` are looked at, not run

A copy costs as many tokens as it has from its first difference on. Copies of about one length are
run side by side; attention alone pads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from counterpoise.policy.attention import PackedAttention
from counterpoise.policy.load import Policy
from counterpoise.policy.packing import Packing
from counterpoise.policy.transfer import to_device
from counterpoise.sample.cache import Recorded
from counterpoise.types import Ints

UNEVEN = 1.15  # length of a copy beside the mean of those it would be padded with
LOOKED_AT = 8  # padded tokens that copies may look at, for each token of a pass


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """A response that is kept up to a place and goes on otherwise.

    Example:
        Copy(row=3, kept=5, tokens=[0, 41, 7])
    """

    row: int  # of the packing
    kept: int  # tokens of the response before the first difference
    tokens: Ints  # what follows instead, at least one


class Originals:
    """Packed rows, computed once; copies look at their keys and values."""

    @torch.no_grad()
    def __init__(self, policy: Policy, packing: Packing) -> None:
        self.policy, self.packing = policy, packing
        recorded = Recorded(PackedAttention(packing))
        self.hidden_N = policy.decoder(packing.tokens_N, packing.positions_N, recorded)
        self.keys, self.values = recorded.keys, recorded.values

    def batches(self, copies: Sequence[Copy], micro_tokens: int) -> Iterator[list[int]]:
        """Copies of each pass, the shortest first: at least one, else as many as fit."""
        batch: list[int] = []
        tokens = longest = 0
        for i in sorted(range(len(copies)), key=lambda i: len(copies[i].tokens)):
            run, whole = len(copies[i].tokens), self._length(copies[i])
            looked_at = (len(batch) + 1) * max(longest, whole)
            full = tokens + run > micro_tokens or looked_at > LOOKED_AT * micro_tokens
            uneven = run > UNEVEN * tokens / max(1, len(batch)) and tokens > micro_tokens / 8
            if batch and (full or uneven):
                yield batch
                batch, tokens, longest = [], 0, 0
            batch.append(i)
            tokens, longest = tokens + run, max(longest, whole)
        if batch:
            yield batch

    @torch.no_grad()
    def run(self, copies: Sequence[Copy]) -> Tensor:
        """Hidden states of the copies' own tokens, copy after copy: [n, D]."""
        lengths = np.array([len(copy.tokens) for copy in copies])
        begins = np.array([self._length(copy) for copy in copies]) - lengths  # positions
        ends = np.cumsum(lengths)
        within = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        device = self.policy.device
        return self.policy.decoder(
            to_device(np.concatenate([copy.tokens for copy in copies]), device, np.int64),
            to_device(np.repeat(begins, lengths) + within, device, np.int64),
            _Attention(self, copies, lengths, begins),
        )

    def _length(self, copy: Copy) -> int:
        _, prompt = self.packing.prompts[self.packing.parents[copy.row]]
        return prompt + copy.kept + len(copy.tokens)

    def places(self, copy: Copy) -> np.ndarray:
        """What a copy shares with its original, among the N tokens."""
        start, prompt = self.packing.prompts[self.packing.parents[copy.row]]
        first, _ = self.packing.responses[copy.row]
        shared = (np.arange(start, start + prompt), np.arange(first, first + copy.kept))
        return np.concatenate(shared)


class _Attention:
    """An `attend`: a copy's token sees what is shared, and the copy's own past."""

    def __init__(
        self, to: Originals, copies: Sequence[Copy], lengths_C: np.ndarray, shared_C: np.ndarray
    ) -> None:
        C, W, S = len(copies), int(lengths_C.max()), int(shared_C.max())
        shared = np.zeros((C, S), dtype=np.int64)
        for c, copy in enumerate(copies):
            shared[c, : shared_C[c]] = to.places(copy)
        starts_C = np.cumsum(lengths_C) - lengths_C
        own = starts_C[:, None] + np.minimum(np.arange(W), lengths_C[:, None] - 1)  # [C, W]
        real = np.arange(W) < lengths_C[:, None]
        sees_shared = np.arange(S) < shared_C[:, None]
        mask = np.concatenate(
            (
                np.broadcast_to(sees_shared[:, None], (C, W, S)),
                np.broadcast_to(np.tri(W, dtype=bool), (C, W, W)),
            ),
            axis=2,
        )
        device = to.policy.device
        self.keys, self.values = to.keys, to.values
        self.shared, self.own = to_device(shared, device), to_device(own, device, np.int64)
        self.back_n = to_device(np.flatnonzero(real), device, np.int64)
        self.mask = to_device(mask, device)[:, None]  # [C, 1, W, S + W]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.shape[1] // k.shape[1]

        def beside(kept_N: Tensor, own_n: Tensor) -> Tensor:
            """[C, H, S + W, d]"""
            whole = torch.cat((kept_N[self.shared], own_n[self.own]), dim=1)
            return whole.repeat_interleave(group, dim=2).transpose(1, 2)

        out = F.scaled_dot_product_attention(
            q[self.own].transpose(1, 2),
            beside(self.keys[layer], k),
            beside(self.values[layer], v),
            attn_mask=self.mask,
        )
        return out.transpose(1, 2).flatten(0, 1).index_select(0, self.back_n)
