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

from counterpoise.policy.attention import PackedAttention, rows_at
from counterpoise.policy.load import Policy
from counterpoise.policy.packing import Packing
from counterpoise.policy.transfer import to_device
from counterpoise.sample.cache import Recorded
from counterpoise.types import Ints

Span = tuple[int, int]  # [start, end), tokens of a response

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

    def run(
        self, copies: Sequence[Copy], asked: Sequence[Span], embedded_n: Tensor | None = None
    ) -> Tensor:
        """Hidden states at the places `asked` for among a copy's tokens, copy after copy: [n, D].

        `embedded_n` stands in for the embeddings of the copies' tokens, with a gradient: to it
        alone, since originals are constants.
        """
        lengths = np.array([len(copy.tokens) for copy in copies])
        begins = np.array([self._length(copy) for copy in copies]) - lengths  # positions
        starts = np.cumsum(lengths) - lengths
        within = np.arange(lengths.sum()) - np.repeat(starts, lengths)
        wanted = [np.arange(a, e) + s for (a, e), s in zip(asked, starts, strict=True)]
        device = self.policy.device
        self.policy.decoder.reserve(int((begins + lengths).max()))
        with torch.set_grad_enabled(embedded_n is not None):
            return self.policy.decoder(
                to_device(np.concatenate([copy.tokens for copy in copies]), device, np.int64),
                to_device(np.repeat(begins, lengths) + within, device, np.int64),
                _Attention(self, copies, lengths, begins, asked),
                embedded_N=embedded_n,
                wanted_n=to_device(np.concatenate(wanted), device, np.int64),
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
        self,
        to: Originals,
        copies: Sequence[Copy],
        lengths_C: np.ndarray,
        shared_C: np.ndarray,
        asked: Sequence[Span],
    ) -> None:
        device, S = to.policy.device, int(shared_C.max())
        shared = np.zeros((len(copies), S), dtype=np.int64)
        for c, copy in enumerate(copies):
            shared[c, : shared_C[c]] = to.places(copy)
        own, _ = _padded(np.zeros_like(lengths_C), lengths_C)
        self.keys, self.values = to.keys, to.values
        self.shared, self.own = to_device(shared, device), to_device(own, device, np.int64)
        spans = [(0, length) for length in lengths_C.tolist()], asked
        self.all, self.asked = (
            _Queries(to.policy, some, shared_C, (S, own.shape[1])) for some in spans
        )

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """In the last layer `q` is that of the places asked for."""
        by = self.asked if layer == len(self.keys) - 1 else self.all
        kept = self.keys[layer], self.values[layer]

        def beside(kept_N: Tensor, own_n: Tensor) -> Tensor:
            """[C, K, S + W, d]"""
            whole = torch.cat((kept_N[self.shared], rows_at(own_n, self.own)), dim=1)
            return whole.transpose(1, 2)

        (C, Q), K = by.places.shape, k.shape[1]
        folded = rows_at(q, by.places).view(C, Q, K, -1, q.shape[2])  # a key head's queries
        out = F.scaled_dot_product_attention(
            folded.permute(0, 2, 3, 1, 4).flatten(2, 3),
            beside(kept[0], k),
            beside(kept[1], v),
            attn_mask=by.mask,
        )
        split = out.view(C, K, -1, Q, q.shape[2]).permute(0, 3, 1, 2, 4)
        return split.reshape(C * Q, q.shape[1], -1).index_select(0, by.back_n)


class _Queries:
    """Tokens of every copy that look, padded with its last."""

    def __init__(
        self, policy: Policy, spans: Sequence[Span], shared_C: np.ndarray, seen: tuple[int, int]
    ) -> None:
        """`seen`: what is shared, and a copy's own tokens, at most."""
        S, W = seen
        first_C, counts_C = np.array(spans)[:, 0], np.array([end - start for start, end in spans])
        places, at = _padded(first_C, counts_C)
        sees_shared = np.arange(S) < shared_C[:, None, None]
        sees = np.concatenate(
            (np.broadcast_to(sees_shared, (*at.shape, S)), np.arange(W) <= at[..., None]), axis=2
        )
        real = np.arange(at.shape[1]) < counts_C[:, None]
        device, decoder = policy.device, policy.decoder
        self.places = to_device(places, device, np.int64)
        self.back_n = to_device(np.flatnonzero(real), device, np.int64)
        clear = torch.zeros((), dtype=decoder.dtype, device=device)
        mask = torch.where(to_device(sees, device), clear, -torch.inf)[:, None]
        self.mask = mask.repeat(1, 1, decoder.heads // decoder.kv_heads, 1)  # [C, 1, g Q, S + W]


def _padded(first_C: np.ndarray, counts_C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Per copy `counts` tokens from its `first` on, padded with the last: [C, Q] each of their
    places when they alone lie side by side, and within the copy."""
    nth = np.minimum(np.arange(counts_C.max()), counts_C[:, None] - 1)
    return (np.cumsum(counts_C) - counts_C)[:, None] + nth, first_C[:, None] + nth
