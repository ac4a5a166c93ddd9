"""Copies of rows with some tokens masked, computed from the first difference on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.credit.answer_spans import span_indices
from counterpoise.model.attention import PackedAttention, gather_rows
from counterpoise.model.decoder import Decoder
from counterpoise.model.kernels import is_half_on_gpu
from counterpoise.model.load import Policy
from counterpoise.model.packing import Packing
from counterpoise.model.transfer import to_device
from counterpoise.sample.kv_cache import RecordingAttention
from counterpoise.types import Ints

# Copies of a response that differ from some token on, and what their tokens look at.
#
#     original   p p p p a b c d e f g        keys and values kept, the prompt's once for its group
#     copies             . b c d e f          from the first token: everything is computed again
# . e f          from the fourth: `p p p p a b c` are looked at, not run
#
# On a GPU in half precision a kernel reads keys and values where they are
# (`model/kernels/copies.py`). Elsewhere they are laid side by side, padded to the longest.

Span = tuple[int, int]  # [start, end), tokens of a response
LengthArray = NDArray[np.integer]  # [C]
SpanArray = NDArray[np.integer]  # [C, 2], (start, length) each


@dataclass(frozen=True, slots=True, eq=False)
class RowCopy:
    """A response that is kept up to a place and goes on otherwise.

    Example:
        RowCopy(row=3, kept=5, tokens=[0, 41, 7])
    """

    row: int  # of the packing
    prefix_length: int  # tokens of the response before the first difference
    tokens: Ints  # what follows instead, at least one


@dataclass(frozen=True, slots=True, eq=False)
class OriginalCache:
    """What originals left behind."""

    packing: Packing
    keys: Sequence[Tensor]  # per layer [N, K, d]
    values: Sequence[Tensor]

    def shared_spans(self, copies: Sequence[RowCopy]) -> tuple[SpanArray, SpanArray]:
        """[C, 2] (start, length) of their prompts and of what they keep, among the N tokens."""
        row_C = np.array([copy.row for copy in copies])
        first_C = np.array(self.packing.responses)[row_C, 0]
        kept_C = np.array([copy.prefix_length for copy in copies])
        prompts = np.array(self.packing.prompts)[np.array(self.packing.parents)[row_C]]
        return prompts, np.stack((first_C, kept_C), axis=1)


class FusedCopyAttention:
    """An `attend` without a backward; in the last layer the queries asked for are the copies' last
    ones."""

    def __init__(
        self,
        decoder: Decoder,
        kept: OriginalCache,
        copies: Sequence[RowCopy],
        asked: Sequence[Span],
    ) -> None:
        from counterpoise.model.kernels.copies import make_copy_blocks

        lengths_C, asked_C2 = np.array([len(copy.tokens) for copy in copies]), np.array(asked)
        assert (asked_C2[:, 1] == lengths_C).all()
        own, shared = _side_by_side(lengths_C), kept.shared_spans(copies)
        runs = own, _side_by_side(asked_C2[:, 1] - asked_C2[:, 0])
        group, device = decoder.heads // decoder.kv_heads, decoder.device
        self.cache = kept
        self.all_queries, self.last_layer_queries = (
            make_copy_blocks(np.concatenate((queries, own, *shared), axis=1), group, device)
            for queries in runs
        )

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        from counterpoise.model.kernels.copies import attend_copies

        at = self.last_layer_queries if layer == len(self.cache.keys) - 1 else self.all_queries
        return attend_copies(q, k, v, self.cache.keys[layer], self.cache.values[layer], at)


def _side_by_side(lengths_C: LengthArray) -> SpanArray:
    return np.stack((np.cumsum(lengths_C) - lengths_C, lengths_C), axis=1)


class PaddedCopyAttention:
    """An `attend` by torch's own attention."""

    def __init__(
        self,
        decoder: Decoder,
        kept: OriginalCache,
        copies: Sequence[RowCopy],
        asked: Sequence[Span],
    ) -> None:
        lengths_C = np.array([len(copy.tokens) for copy in copies])
        spans = kept.shared_spans(copies)
        shared_C = spans[0][:, 1] + spans[1][:, 1]
        device, S = decoder.device, int(shared_C.max())
        shared = np.zeros((len(copies), S), dtype=np.int64)
        for c, parts in enumerate(zip(*spans, strict=True)):
            where = [np.arange(start, start + length) for start, length in parts]
            shared[c, : shared_C[c]] = np.concatenate(where)
        own, _ = _padded_positions(np.zeros_like(lengths_C), lengths_C)
        self.cache = kept
        self.shared_index, self.own_index = (
            to_device(shared, device),
            to_device(own, device, np.int64),
        )
        all_of = [(0, length) for length in lengths_C.tolist()]
        self.all_queries, self.last_layer_queries = (
            _PaddedQueries(decoder, some, shared_C, (S, own.shape[1])) for some in (all_of, asked)
        )

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """In the last layer `q` is that of the places asked for."""
        by = self.last_layer_queries if layer == len(self.cache.keys) - 1 else self.all_queries

        def beside(kept_N: Tensor, own_n: Tensor) -> Tensor:
            """[C, K, S + W, d]"""
            whole = torch.cat(
                (kept_N[self.shared_index], gather_rows(own_n, self.own_index)), dim=1
            )
            return whole.transpose(1, 2)

        (C, Q), K = by.token_index.shape, k.shape[1]
        folded = gather_rows(q, by.token_index).view(
            C, Q, K, -1, q.shape[2]
        )  # a key head's queries
        out = F.scaled_dot_product_attention(
            folded.permute(0, 2, 3, 1, 4).flatten(2, 3),
            beside(self.cache.keys[layer], k),
            beside(self.cache.values[layer], v),
            attn_mask=by.mask,
        )
        split = out.view(C, K, -1, Q, q.shape[2]).permute(0, 3, 1, 2, 4)
        return split.reshape(C * Q, q.shape[1], -1).index_select(0, by.unpadded_n)


class _PaddedQueries:
    """Tokens of every copy that look, padded with its last."""

    def __init__(
        self, decoder: Decoder, spans: Sequence[Span], shared_C: np.ndarray, seen: tuple[int, int]
    ) -> None:
        """`seen`: what is shared, and a copy's own tokens, at most."""
        S, W = seen
        first_C, counts_C = np.array(spans)[:, 0], np.array([end - start for start, end in spans])
        places, at = _padded_positions(first_C, counts_C)
        sees_shared = np.arange(S) < shared_C[:, None, None]
        sees = np.concatenate(
            (np.broadcast_to(sees_shared, (*at.shape, S)), np.arange(W) <= at[..., None]), axis=2
        )
        real = np.arange(at.shape[1]) < counts_C[:, None]
        device = decoder.device
        self.token_index = to_device(places, device, np.int64)
        self.unpadded_n = to_device(np.flatnonzero(real), device, np.int64)
        clear = torch.zeros((), dtype=decoder.dtype, device=device)
        mask = torch.where(to_device(sees, device), clear, -torch.inf)[:, None]
        self.mask = mask.repeat(1, 1, decoder.heads // decoder.kv_heads, 1)  # [C, 1, g Q, S + W]


def _padded_positions(first_C: np.ndarray, counts_C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Per copy `counts` tokens from its `first` on, padded with the last: [C, Q] each of their
    places when they alone lie side by side, and within the copy."""
    nth = np.minimum(np.arange(counts_C.max()), counts_C[:, None] - 1)
    return (np.cumsum(counts_C) - counts_C)[:, None] + nth, first_C[:, None] + nth


# Rows computed once, and copies of them from their first difference on (`credit/masked_copies.py`).
#
# A copy costs as many tokens as it has from its first difference on. Where attention pads, copies
# of about one length are run side by side.

COPY_PASS_FACTOR = (
    8  # than a pass that is differentiated: without padding, of what is run nothing is kept
)
MAX_LENGTH_RATIO = 1.15  # length of a copy beside the mean of those it would be padded with
MAX_KEYS_FACTOR = 8  # padded tokens that copies may look at, for each token of a pass


class OriginalRows:
    """Packed rows, computed once; copies look at their keys and values."""

    @torch.no_grad()
    def __init__(self, policy: Policy, packing: Packing) -> None:
        self.policy, self.packing = policy, packing
        recorded = RecordingAttention(PackedAttention(packing))
        self.hidden_N = policy.decoder(packing.tokens_N, packing.positions_N, recorded)
        self.cache = OriginalCache(packing, recorded.keys, recorded.values)
        self.pads_attention = not is_half_on_gpu(self.hidden_N)

    def copy_batches(self, copies: Sequence[RowCopy], micro_tokens: int) -> Iterator[list[int]]:
        """Copies of each pass: at least one, else as many as fit. Where attention pads, the
        shortest first."""
        runs = [len(copy.tokens) for copy in copies]
        wholes = (self._shared_lengths(copies) + runs).tolist()
        order = list(range(len(copies)))
        if self.pads_attention:
            order.sort(key=lambda i: runs[i])
        batch: list[int] = []
        tokens = longest = 0
        for i in order:
            run, whole = runs[i], wholes[i]
            full = tokens + run > (
                micro_tokens if self.pads_attention else COPY_PASS_FACTOR * micro_tokens
            )
            if self.pads_attention:
                full |= (len(batch) + 1) * max(longest, whole) > MAX_KEYS_FACTOR * micro_tokens
                many = tokens > micro_tokens / 8
                full |= many and run > MAX_LENGTH_RATIO * tokens / len(batch)
            if batch and full:
                yield batch
                batch, tokens, longest = [], 0, 0
            batch.append(i)
            tokens, longest = tokens + run, max(longest, whole)
        if batch:
            yield batch

    def run_copies(
        self, copies: Sequence[RowCopy], asked: Sequence[Span], embedded_n: Tensor | None = None
    ) -> Tensor:
        """Hidden states at the places `asked` for among a copy's tokens, copy after copy: [n, D].

        `embedded_n` stands in for the embeddings of the copies' tokens, with a gradient: to it
        alone, since originals are constants.
        """
        lengths = np.array([len(copy.tokens) for copy in copies])
        begins = self._shared_lengths(copies)  # positions
        starts = np.cumsum(lengths) - lengths
        within = np.arange(lengths.sum()) - np.repeat(starts, lengths)
        wanted = np.array(asked) + starts[:, None]
        decoder, device = self.policy.decoder, self.policy.device
        decoder.reserve(int((begins + lengths).max()))
        fused = embedded_n is None and not self.pads_attention
        way: type[FusedCopyAttention | PaddedCopyAttention] = (
            FusedCopyAttention if fused else PaddedCopyAttention
        )
        attend = way(decoder, self.cache, copies, asked)
        with torch.set_grad_enabled(embedded_n is not None):
            return decoder(
                to_device(np.concatenate([copy.tokens for copy in copies]), device, np.int64),
                to_device(np.repeat(begins, lengths) + within, device, np.int64),
                attend,
                embedded_N=embedded_n,
                output_indices_n=span_indices(wanted, device),
            )

    def _shared_lengths(self, copies: Sequence[RowCopy]) -> NDArray[np.integer]:
        """Tokens that each looks at and does not run."""
        prompts, kept = self.cache.shared_spans(copies)
        return prompts[:, 1] + kept[:, 1]
