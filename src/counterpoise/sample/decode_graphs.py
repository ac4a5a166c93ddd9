"""GPU decoding: each decoding step is captured once as a CUDA graph and replayed for every token.

A decoded token takes some 240 small kernels, which cost more to launch than to compute. All memory
that a step touches stays in place (`sample/kv_slots.py`), and the weights are the trainer's own
tensors, updated in place, so a graph captured once serves every later iteration.

Finished rows are removed at intervals. Rows that wait take their slots, so that the same graph goes
on with a full batch; when no more wait, a smaller graph suffices. Batches therefore come in a few
sizes, and each size is captured when it is first needed: its first step runs eagerly (which also
compiles its kernels), then the step is captured, and all later ones are replayed
(`sample/decode_slots.py` has the loop). On a CPU, where only tests decode like this, every step
runs eagerly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from counterpoise.model.decoder import Decoder
from counterpoise.model.load import AnyDecoder
from counterpoise.sample.choose_token import choose_tokens
from counterpoise.sample.kv_budget import (
    MAX_ROWS_CUDA,
    PAGE_TOKENS,
    SAMPLE_BYTES,
    kv_bytes_allowed,
)
from counterpoise.sample.kv_cache import Fork
from counterpoise.sample.kv_slots import DecodeSlots, SlotCapacity, num_pages

# Capacities are rounded up to multiples, so that they, and with them the graphs, seldom change:
# the tokens of all prefixes, and the new tokens of a row.
PREFIX_MULTIPLE, ROOM_MULTIPLE = 4096, 64
PREFIX_SHARE_DIVISOR = 4  # prefixes may take 1 / this of the memory
# With pages, 1 / this of the memory stays unused: free memory changes a little from call to call,
# and the existing slots should still fit.
UNUSED_SHARE_DIVISOR = 8


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """How a token is sampled. A captured graph is valid for one such setting."""

    temperature: float
    top_p: float
    top_k: int
    end_tokens: tuple[int, ...]


class DecodeGraphs:
    """The slots of one decoder, and a graph for each batch size and `DrawSettings`."""

    def __init__(self, decoder: Decoder, capacity: SlotCapacity) -> None:
        self.slots = DecodeSlots(decoder, capacity)
        self.weight_addresses = decoder.tensor_addresses
        self._graphs: dict[tuple[int, DrawSettings], torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        self._end_tokens: dict[DrawSettings, Tensor] = {}

    def step(self, decoder: Decoder, batch: int, settings: DrawSettings) -> None:
        """Decode the current token of the first `batch` places and sample the next one."""
        key = (batch, settings)
        graph = self._graphs.get(key)
        if graph is not None:
            graph.replay()
            return
        self._run_step(decoder, batch, settings)
        if decoder.device.type == "cuda":
            self._graphs[key] = self._capture(decoder, batch, settings)

    def _capture(
        self, decoder: Decoder, batch: int, settings: DrawSettings
    ) -> torch.cuda.CUDAGraph:
        """Record a step without executing it."""
        # Only one graph is replayed at a time, so all of them can share one memory pool.
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            self._run_step(decoder, batch, settings)
        return graph

    def _run_step(self, decoder: Decoder, batch: int, settings: DrawSettings) -> None:
        slots = self.slots
        hidden = decoder(slots.current[:batch], slots.positions[:batch], slots)
        self.draw_tokens(hidden @ decoder.unembedding.T, settings, offset=1)

    def draw_tokens(
        self, logits_RV: Tensor, settings: DrawSettings, *, offset: int, first_place: int = 0
    ) -> None:
        """Sample a token for every row from `first_place` on.

        `offset` is added to each row's position: 1 in a decoding step, 0 for the first token of a
        row, whose position `start_rows` has set. Rows that have finished stay as they are.
        """
        slots, places = self.slots, slice(first_place, first_place + len(logits_RV))
        row_slots, positions = slots.rows[places], slots.positions[places]
        current, running = slots.current[places], slots.running[places]
        # The tensor is created once, outside any capture: a capture cannot copy from the host.
        if settings not in self._end_tokens:
            self._end_tokens[settings] = torch.tensor(settings.end_tokens, device=logits_RV.device)
        end_tokens = self._end_tokens[settings]
        if logits_RV.is_cuda:
            from counterpoise.sample.kernels.draw import draw_tokens

            draw_tokens(
                logits_RV,
                slots=row_slots,
                uniforms=slots.uniforms,
                prefix_lengths=slots.prefix_lengths,
                end_tokens=end_tokens,
                limits=slots.limits,
                tokens=slots.tokens,
                logprobs=slots.logprobs,
                current=current,
                positions=positions,
                running=running,
                temperature=settings.temperature,
                top_p=settings.top_p,
                top_k=settings.top_k,
                offset=offset,
            )
            return
        in_progress = running.nonzero().squeeze(1)
        row_slots = row_slots[in_progress]
        t = positions[in_progress] + offset - slots.prefix_lengths[row_slots]
        tokens, logprobs = choose_tokens(
            logits_RV[in_progress].float(),
            slots.uniforms[row_slots, t],
            settings.temperature,
            settings.top_p,
            settings.top_k,
        )
        slots.tokens[row_slots, t], slots.logprobs[row_slots, t] = tokens, logprobs
        current[in_progress] = tokens
        positions[in_progress] += offset
        running[in_progress] = ~torch.isin(tokens, end_tokens) & (t + 1 < slots.limits[row_slots])


_GRAPHS: WeakKeyDictionary[AnyDecoder, DecodeGraphs] = WeakKeyDictionary()


def graphs_for(decoder: Decoder, needed: SlotCapacity) -> DecodeGraphs:
    """The decoder's graphs, rebuilt if they are too small or the weights have moved in memory.

    `needed` comes from `plan_slots`.
    """
    existing = _GRAPHS.get(decoder)
    if (
        existing
        and existing.slots.capacity.holds(needed)
        and existing.weight_addresses == decoder.tensor_addresses
    ):
        return existing
    if existing:
        # Serve the old needs too if memory allows, so that batches which alternate between two
        # shapes do not rebuild the graphs each time. Few long rows and many short ones together
        # would mean many long rows, which may not fit: then only the new needs count.
        combined = needed.with_room_for(existing.slots.capacity)
        bytes_needed = combined.num_bytes(decoder.kv_bytes_per_token)
        if bytes_needed <= kv_bytes_allowed(decoder, kv_bytes_held(decoder)):
            needed = combined
        # The old slots must be freed before the new ones are allocated.
        release_graphs(decoder)
        del existing
    graphs = _GRAPHS[decoder] = DecodeGraphs(decoder, needed)
    return graphs


def release_graphs(decoder: AnyDecoder) -> None:
    """Free the memory of the decoder's slots and graphs."""
    _GRAPHS.pop(decoder, None)


def kv_bytes_held(decoder: AnyDecoder) -> int:
    """Bytes that the decoder's slots hold now."""
    existing = _GRAPHS.get(decoder)
    return existing.slots.capacity.num_bytes(decoder.kv_bytes_per_token) if existing else 0


def round_up_capacity(capacity: SlotCapacity) -> SlotCapacity:
    """The next larger capacity of the few sizes in use."""
    return SlotCapacity(
        rows=batch_size(capacity.rows),
        new_tokens=-(-capacity.new_tokens // ROOM_MULTIPLE) * ROOM_MULTIPLE,
        prefix_tokens=-(-capacity.prefix_tokens // PREFIX_MULTIPLE) * PREFIX_MULTIPLE,
    )


def plan_slots(
    decoder: Decoder, forks: Sequence[Fork], prefix_tokens: int, longest_prefix: int
) -> SlotCapacity:
    """Slots for all forks at full length and all their prefixes if they fit, otherwise with pages.

    `prefix_tokens`: of all prefixes together.
    """
    kv_bytes = decoder.kv_bytes_per_token
    bytes_allowed = kv_bytes_allowed(decoder, kv_bytes_held(decoder))
    new_tokens = max(fork.max_new_tokens for fork in forks)
    everything = SlotCapacity(len(forks), new_tokens, prefix_tokens)
    planned = fit_capacity(everything, longest_prefix, bytes_allowed, kv_bytes)
    existing = _GRAPHS.get(decoder)
    # The free memory changes a little from call to call; graphs are not rebuilt for that.
    if existing and (planned.pages or planned.rows < len(forks)):
        capacity = existing.slots.capacity
        has_room = (
            capacity.num_bytes(kv_bytes) <= bytes_allowed
            and 2 * capacity.rows > planned.rows
            and 2 * capacity.needed_pages > planned.needed_pages
        )
        minimum = SlotCapacity(1, new_tokens, longest_prefix)
        if has_room and capacity.holds(minimum):
            return capacity
    return planned


def fit_capacity(
    everything: SlotCapacity, longest_prefix: int, bytes_allowed: int, kv_bytes_per_token: int
) -> SlotCapacity:
    """`everything` rounded up if it fits into so many bytes, otherwise slots that share pages.

    Example:
        >>> fit_capacity(SlotCapacity(512, 8192, 6_000), 100, 70 * 10**9, 114_688)
        SlotCapacity(rows=512, new_tokens=8192, prefix_tokens=8192, pages=4102)
    """
    everything = replace(everything, rows=min(everything.rows, MAX_ROWS_CUDA))
    capacity = round_up_capacity(everything)
    if capacity.num_bytes(kv_bytes_per_token) <= bytes_allowed:
        return capacity
    pages_of_row = num_pages(capacity.new_tokens)
    page_bytes = PAGE_TOKENS * kv_bytes_per_token
    slot_bytes = capacity.new_tokens * SAMPLE_BYTES
    bytes_left = bytes_allowed - bytes_allowed // UNUSED_SHARE_DIVISOR
    bytes_left -= page_bytes + slot_bytes  # of the spare page and the spare slot
    # Prefixes get what they need up to a share of the memory: a prefix serves a whole group. One
    # row of full length must fit beside them.
    prefix_share = min(
        bytes_allowed // PREFIX_SHARE_DIVISOR,
        bytes_left - slot_bytes - pages_of_row * page_bytes,
    )
    prefix_tokens = max(longest_prefix, prefix_share // kv_bytes_per_token)
    prefix_tokens = min(capacity.prefix_tokens, prefix_tokens)
    bytes_left -= prefix_tokens * kv_bytes_per_token
    # A row that runs needs a page, and another one is kept for it to grow.
    rows = min(
        capacity.rows,
        bytes_left // (slot_bytes + min(2, pages_of_row) * page_bytes),
        (bytes_left - pages_of_row * page_bytes) // slot_bytes,
    )
    # Rounded down to one of BATCH_SIZES, whose graph serves other calls as well.
    rows = max((size for size in BATCH_SIZES if size <= rows), default=max(1, rows))
    pages = min(rows * pages_of_row, (bytes_left - rows * slot_bytes) // page_bytes)
    return SlotCapacity(rows, capacity.new_tokens, prefix_tokens, max(pages_of_row, pages))


def batch_size(rows: int) -> int:
    """The padded batch size for `rows` rows: a power of two, or halfway between two of them.

    Example:
        >>> [batch_size(n) for n in (1, 5, 8, 9, 100, 200, 257)]
        [8, 8, 8, 12, 128, 256, 384]
    """
    size = 8
    while size < rows:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


BATCH_SIZES = sorted({batch_size(rows) for rows in range(1, MAX_ROWS_CUDA + 1)})
