"""Copies of rows that differ from some token on, computed from the first difference on.

    original   p p p p a b c d e f g        keys and values cached, a prompt's once per group
    copy 1             . b c d e f          differs from the first token on: all of it is run
    copy 2                   . e f          from the fourth: `p p p p a b c` is read from the cache

A copy costs the tokens that are run. Copies leave out the last token: nothing needs its prediction.
`oar_p` masks tokens, as above. `grail` and `oar_g` cache only prompts: a copy is then the whole
response, with a prefix of length 0. On a GPU in half precision a kernel reads cached keys and
values in place (`model/kernels/copies.py`). Elsewhere they are gathered and padded to the longest,
so copies of similar length are run together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.model.attention import PackedAttention, gather_rows
from counterpoise.model.decoder import Decoder
from counterpoise.model.kernels import is_half_on_gpu
from counterpoise.model.load import Policy, require_fast_path
from counterpoise.model.packing import Packing
from counterpoise.model.spans import Span, span_indices
from counterpoise.model.transfer import to_device
from counterpoise.sample.kv_cache import RecordingAttention
from counterpoise.types import Ints

LengthArray = NDArray[np.integer]  # [C]
SpanArray = NDArray[np.integer]  # [C, 2], (start, length) each


@dataclass(frozen=True, slots=True, eq=False)
class RowCopy:
    """A response that agrees with the original up to a position and continues with other tokens.

    Example:
        RowCopy(row=3, prefix_length=5, tokens=[0, 41, 7])
    """

    row: int  # index in the packing
    prefix_length: int  # response tokens before the first difference
    tokens: Ints  # the copy's own tokens after the prefix, at least one


@dataclass(frozen=True, slots=True, eq=False)
class OriginalCache:
    """Keys and values of the original rows, and where each row's tokens lie in them."""

    packing: Packing
    keys: Sequence[Tensor]  # per layer [N, K, d]
    values: Sequence[Tensor]

    def shared_spans(self, copies: Sequence[RowCopy]) -> tuple[SpanArray, SpanArray]:
        """[C, 2] (start, length) of each copy's prompt and prefix, among the N cached tokens."""
        row_C = np.array([copy.row for copy in copies])
        response_start_C = np.array(self.packing.responses)[row_C, 0]
        prefix_C = np.array([copy.prefix_length for copy in copies])
        prompts = np.array(self.packing.prompts)[np.array(self.packing.parents)[row_C]]
        return prompts, np.stack((response_start_C, prefix_C), axis=1)


class FusedCopyAttention:
    """Attention of copies by a GPU kernel that has no backward pass.

    In the last layer only the requested queries are computed; they must end with the copy.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: OriginalCache,
        copies: Sequence[RowCopy],
        query_spans: Sequence[Span],
    ) -> None:
        from counterpoise.model.kernels.copies import make_copy_blocks

        lengths_C, query_C2 = np.array([len(copy.tokens) for copy in copies]), np.array(query_spans)
        assert (query_C2[:, 1] == lengths_C).all()
        own_spans, shared_spans = _consecutive_spans(lengths_C), cache.shared_spans(copies)
        query_runs = own_spans, _consecutive_spans(query_C2[:, 1] - query_C2[:, 0])
        queries_per_key, device = decoder.heads // decoder.kv_heads, decoder.device
        self.cache = cache
        self.all_queries, self.last_layer_queries = (
            make_copy_blocks(
                np.concatenate((queries, own_spans, *shared_spans), axis=1), queries_per_key, device
            )
            for queries in query_runs
        )

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None = None
    ) -> Tensor:
        assert window is None, "model/families.py refuses sliding windows on a GPU"
        # Imported here because Triton exists only where there is a GPU.
        from counterpoise.model.kernels.copies import attend_copies

        blocks = self.last_layer_queries if layer == len(self.cache.keys) - 1 else self.all_queries
        return attend_copies(q, k, v, self.cache.keys[layer], self.cache.values[layer], blocks)


def _consecutive_spans(lengths_C: LengthArray) -> SpanArray:
    """(start, length) of copies that lie one after the other on a token axis."""
    return np.stack((np.cumsum(lengths_C) - lengths_C, lengths_C), axis=1)


class PaddedCopyAttention:
    """Attention of copies by torch's own kernel, over gathered and padded keys and values."""

    def __init__(
        self,
        decoder: Decoder,
        cache: OriginalCache,
        copies: Sequence[RowCopy],
        query_spans: Sequence[Span],
    ) -> None:
        lengths_C = np.array([len(copy.tokens) for copy in copies])
        shared_spans = cache.shared_spans(copies)
        shared_C = shared_spans[0][:, 1] + shared_spans[1][:, 1]
        device, S = decoder.device, int(shared_C.max())
        shared_index = np.zeros((len(copies), S), dtype=np.int64)
        for copy_number, copy_spans in enumerate(zip(*shared_spans, strict=True)):
            index_ranges = [np.arange(start, start + length) for start, length in copy_spans]
            shared_index[copy_number, : shared_C[copy_number]] = np.concatenate(index_ranges)
        own_index, _ = _padded_positions(np.zeros_like(lengths_C), lengths_C)
        self.cache = cache
        self.shared_index = to_device(shared_index, device)
        self.own_index = to_device(own_index, device, np.int64)
        all_spans = [(0, length) for length in lengths_C.tolist()]
        self.all_queries, self.last_layer_queries = (
            _PaddedQueries(decoder, spans, shared_C, (S, own_index.shape[1]))
            for spans in (all_spans, query_spans)
        )

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None = None
    ) -> Tensor:
        """Attend in one layer; in the last layer `q` holds the requested queries only."""
        queries = self.last_layer_queries if layer == len(self.cache.keys) - 1 else self.all_queries

        def join_shared_and_own(kept_N: Tensor, own_n: Tensor) -> Tensor:
            """[C, K, S + W, d]"""
            joined = torch.cat(
                (kept_N[self.shared_index], gather_rows(own_n, self.own_index)), dim=1
            )
            return joined.transpose(1, 2)

        (C, Q), K = queries.token_index.shape, k.shape[1]
        # Query heads that share a key head become further queries of that key head.
        folded = gather_rows(q, queries.token_index).view(C, Q, K, -1, q.shape[2])
        attended = F.scaled_dot_product_attention(
            folded.permute(0, 2, 3, 1, 4).flatten(2, 3),
            join_shared_and_own(self.cache.keys[layer], k),
            join_shared_and_own(self.cache.values[layer], v),
            attn_mask=queries.mask(window),
        )
        unfolded = attended.view(C, K, -1, Q, q.shape[2]).permute(0, 3, 1, 2, 4)
        return unfolded.reshape(C * Q, q.shape[1], -1).index_select(0, queries.unpadded_n)


AFTER_EVERY_QUERY = np.iinfo(np.int32).max


class _PaddedQueries:
    """Query tokens of every copy, padded with the copy's last query, and their attention mask."""

    def __init__(
        self,
        decoder: Decoder,
        spans: Sequence[Span],
        shared_C: np.ndarray,
        key_lengths: tuple[int, int],
    ) -> None:
        """`key_lengths`: the largest number of shared tokens, and of tokens of a copy's own."""
        S, W = key_lengths
        start_C, counts_C = np.array(spans)[:, 0], np.array([end - start for start, end in spans])
        token_index, position = _padded_positions(start_C, counts_C)
        is_real = np.arange(position.shape[1]) < counts_C[:, None]
        self.token_index = to_device(token_index, decoder.device, np.int64)
        self.unpadded_n = to_device(np.flatnonzero(is_real), decoder.device, np.int64)
        # Positions of queries and keys, counted from a copy's first own token, so that the last
        # shared token is at -1. Padding among the shared tokens comes after every query.
        shared_keys = np.arange(S) - shared_C[:, None]
        shared_keys = np.where(shared_keys < 0, shared_keys, AFTER_EVERY_QUERY)
        own_keys = np.broadcast_to(np.arange(W), (len(shared_C), W))
        self._key_position = np.concatenate((shared_keys, own_keys), axis=1)[:, None]
        self._query_position = position[..., None]
        self._decoder = decoder
        self._masks: dict[int | None, Tensor] = {}

    def mask(self, window: int | None) -> Tensor:
        """The mask [C, 1, g Q, S + W] of layers with this window, computed once."""
        if window not in self._masks:
            visible = self._key_position <= self._query_position
            if window is not None:
                visible &= self._query_position - self._key_position < window
            decoder, device = self._decoder, self._decoder.device
            zero = torch.zeros((), dtype=decoder.dtype, device=device)
            mask = torch.where(to_device(visible, device), zero, -torch.inf)[:, None]
            self._masks[window] = mask.repeat(1, 1, decoder.heads // decoder.kv_heads, 1)
        return self._masks[window]


def _padded_positions(start_C: np.ndarray, counts_C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of `counts_C` queries per copy from its `start_C` on, padded with the last one.

    Returns [C, Q] twice: the index among the queries of all copies, one copy after the other, and
    the index within the copy.
    """
    offset = np.minimum(np.arange(counts_C.max()), counts_C[:, None] - 1)
    return (np.cumsum(counts_C) - counts_C)[:, None] + offset, start_C[:, None] + offset


# A pass without padding takes this many times the tokens of a training pass, because it keeps no
# activations.
COPY_PASS_FACTOR = 8
MAX_LENGTH_RATIO = 1.15  # of a copy's length to the mean length of its batch so far
MAX_KEYS_FACTOR = 8  # padded keys that a pass may have for each of `micro_tokens`


class OriginalRows:
    """Packed rows, computed once, whose keys and values are reused by every copy."""

    @torch.no_grad()
    def __init__(self, policy: Policy, packing: Packing) -> None:
        self.policy, self.packing = policy, packing
        self.decoder = require_fast_path(policy, "masking of tokens (credit.weights=oar_p)")
        recorded = RecordingAttention(PackedAttention(packing))
        self.hidden_N = self.decoder(packing.tokens_N, packing.positions_N, recorded)
        self.cache = OriginalCache(packing, recorded.keys, recorded.values)
        self.pads_attention = not is_half_on_gpu(self.hidden_N)

    def copy_batches(self, copies: Sequence[RowCopy], micro_tokens: int) -> Iterator[list[int]]:
        """Indices of the copies of each pass: at least one, otherwise as many as fit.

        Where attention pads, the shortest copies come first.
        """
        run_lengths = [len(copy.tokens) for copy in copies]
        total_lengths = (self._shared_lengths(copies) + run_lengths).tolist()
        copy_order = list(range(len(copies)))
        if self.pads_attention:
            copy_order.sort(key=lambda i: run_lengths[i])
        batch: list[int] = []
        batch_tokens = longest_total = 0
        max_tokens = micro_tokens if self.pads_attention else COPY_PASS_FACTOR * micro_tokens
        for i in copy_order:
            run_length, total_length = run_lengths[i], total_lengths[i]
            is_full = batch_tokens + run_length > max_tokens
            # With padding, also bound the padded keys and the waste by copies of unequal length.
            if self.pads_attention:
                padded_keys = (len(batch) + 1) * max(longest_total, total_length)
                is_full |= padded_keys > MAX_KEYS_FACTOR * micro_tokens
                enough_tokens = batch_tokens > micro_tokens / 8
                length_limit = MAX_LENGTH_RATIO * batch_tokens / max(1, len(batch))
                is_full |= enough_tokens and run_length > length_limit
            if batch and is_full:
                yield batch
                batch, batch_tokens, longest_total = [], 0, 0
            batch.append(i)
            batch_tokens += run_length
            longest_total = max(longest_total, total_length)
        if batch:
            yield batch

    def run_copies(
        self,
        copies: Sequence[RowCopy],
        query_spans: Sequence[Span],
        embedded_n: Tensor | None = None,
    ) -> Tensor:
        """Hidden states [n, D] at the `query_spans` of each copy's own tokens, copy after copy.

        `embedded_n` replaces the embeddings of the copies' tokens. The gradient flows to it alone,
        because the originals are constants.
        """
        # Copies lie side by side on one token axis; positions continue after prompt and prefix.
        lengths = np.array([len(copy.tokens) for copy in copies])
        first_positions = self._shared_lengths(copies)
        copy_starts = np.cumsum(lengths) - lengths
        offsets_n = np.arange(lengths.sum()) - np.repeat(copy_starts, lengths)
        flat_spans = np.array(query_spans) + copy_starts[:, None]
        decoder, device = self.decoder, self.policy.device
        decoder.reserve(int((first_positions + lengths).max()))
        is_fused = embedded_n is None and not self.pads_attention
        attention_type: type[FusedCopyAttention | PaddedCopyAttention] = (
            FusedCopyAttention if is_fused else PaddedCopyAttention
        )
        attend = attention_type(decoder, self.cache, copies, query_spans)
        with torch.set_grad_enabled(embedded_n is not None):
            return decoder(
                to_device(np.concatenate([copy.tokens for copy in copies]), device, np.int64),
                to_device(np.repeat(first_positions, lengths) + offsets_n, device, np.int64),
                attend,
                embedded_N=embedded_n,
                output_indices_n=span_indices(flat_spans, device),
            )

    def _shared_lengths(self, copies: Sequence[RowCopy]) -> NDArray[np.integer]:
        """Number of tokens that each copy reads from the cache: prompt and prefix."""
        prompts, prefixes = self.cache.shared_spans(copies)
        return prompts[:, 1] + prefixes[:, 1]
