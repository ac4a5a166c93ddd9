"""Decoding on a GPU: a step is captured once as a CUDA graph and replayed for every token.

A decoded token is some 240 small kernels; launched one by one they cost more than they
compute. All memory a step touches stays where it is (`sample/kv_slots.py`) and the weights are the
trainer's own tensors, updated in place, so a graph captured once serves every later iteration.

Finished rows leave at intervals, which takes a smaller graph: batches come in a few sizes, each
captured when it is first needed. The first step of a size runs as it is (which also compiles its
kernels), the next is captured, all others are replayed. On a CPU every step runs as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from counterpoise.config import SampleConfig
from counterpoise.model.decoder import Decoder
from counterpoise.model.load import Policy
from counterpoise.sample.choose_token import choose_tokens
from counterpoise.sample.kv_budget import kv_bytes_allowed, kv_bytes_per_token
from counterpoise.sample.kv_cache import Prefill
from counterpoise.sample.kv_slots import DecodeSlots, SlotCapacity

FINISH_CHECK_INTERVAL = (
    16  # tokens between looks at which rows have finished: a look waits for the GPU
)
PREFIX_MULTIPLE, ROOM_MULTIPLE = 4096, 64  # capacities are rounded up, so that they seldom change


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """How a token is drawn: part of what a graph has captured."""

    temperature: float
    top_p: float
    top_k: int
    end_tokens: tuple[int, ...]


class DecodeGraphs:
    """The slots of one decoder, and a graph for each size of batch and way of drawing."""

    def __init__(self, decoder: Decoder, capacity: SlotCapacity) -> None:
        self.slots = DecodeSlots(decoder, capacity)
        self.weight_addresses = decoder.tensor_addresses
        self._graphs: dict[tuple[int, DrawSettings], torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        self._ends: dict[DrawSettings, Tensor] = {}

    def step(self, decoder: Decoder, batch: int, settings: DrawSettings) -> None:
        """Decode the current token of the first `batch` places and draw the next."""
        key = (batch, settings)
        graph = self._graphs.get(key)
        if graph is not None:
            graph.replay()
            return
        self._compute(decoder, batch, settings)
        if decoder.device.type == "cuda":
            self._graphs[key] = self._captured(decoder, batch, settings)

    def _captured(self, decoder: Decoder, batch: int, how: DrawSettings) -> torch.cuda.CUDAGraph:
        """Records a step and computes nothing. One is replayed at a time, so all share a pool."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            self._compute(decoder, batch, how)
        return graph

    def _compute(self, decoder: Decoder, batch: int, how: DrawSettings) -> None:
        slots = self.slots
        hidden = decoder(slots.current[:batch], slots.positions(batch), slots)
        self.draw_tokens(hidden @ decoder.unembedding.T, how, offset=1)
        slots.step += 1

    def draw_tokens(self, logits_RV: Tensor, settings: DrawSettings, *, offset: int) -> None:
        """Token `step + offset` of every row of the batch, and its books."""
        slots, R = self.slots, len(logits_RV)
        rows, current, running = slots.rows[:R], slots.current[:R], slots.running[:R]
        if settings not in self._ends:
            self._ends[settings] = torch.tensor(settings.end_tokens, device=logits_RV.device)
        ends = self._ends[settings]
        if logits_RV.is_cuda:
            from counterpoise.sample.kernels.draw import draw_tokens

            draw_tokens(
                logits_RV, rows, slots.uniforms, slots.step, ends, slots.limits,
                slots.tokens, slots.logprobs, current, running,
                temperature=settings.temperature, top_p=settings.top_p, top_k=settings.top_k, offset=offset,
            )  # fmt: skip
            return
        t = slots.step + offset
        uniforms = slots.uniforms[rows, t]
        tokens, logprobs = choose_tokens(
            logits_RV.float(), uniforms, settings.temperature, settings.top_p, settings.top_k
        )
        slots.tokens[rows, t], slots.logprobs[rows, t] = tokens, logprobs
        current.copy_(tokens)
        running &= ~torch.isin(tokens, ends) & (t + 1 < slots.limits[rows])


_GRAPHS: WeakKeyDictionary[Decoder, DecodeGraphs] = WeakKeyDictionary()


def graphs_for(decoder: Decoder, needed: SlotCapacity) -> DecodeGraphs:
    """The decoder's graphs, made anew when they are too small or its weights have moved.

    New ones have room for what the old ones had too, as far as memory allows: few long rows after
    many short ones would otherwise make room for many long ones.
    """
    kept = _GRAPHS.get(decoder)
    if (
        kept
        and kept.slots.capacity.holds(needed)
        and kept.weight_addresses == decoder.tensor_addresses
    ):
        return kept
    needed = round_up_capacity(needed)
    if kept:
        both = needed.with_room_for(kept.slots.capacity)
        if both.total_tokens * kv_bytes_per_token(decoder) <= kv_bytes_allowed(
            decoder, kv_bytes_held(decoder)
        ):
            needed = both
        release_graphs(decoder)
        del kept
    made = _GRAPHS[decoder] = DecodeGraphs(decoder, needed)
    return made


def release_graphs(decoder: Decoder) -> None:
    """Give the memory of slots and graphs back."""
    _GRAPHS.pop(decoder, None)


def kv_bytes_held(decoder: Decoder) -> int:
    """Of keys and values."""
    kept = _GRAPHS.get(decoder)
    return kept.slots.capacity.total_tokens * kv_bytes_per_token(decoder) if kept else 0


def round_up_capacity(capacity: SlotCapacity) -> SlotCapacity:
    return SlotCapacity(
        rows=batch_size(capacity.rows),
        new_tokens=-(-capacity.new_tokens // ROOM_MULTIPLE) * ROOM_MULTIPLE,
        prefix_tokens=-(-capacity.prefix_tokens // PREFIX_MULTIPLE) * PREFIX_MULTIPLE,
    )


def batch_size(rows: int) -> int:
    """The size of batch that `rows` rows decode in: powers of two, and halfway between.

    Example:
        >>> [batch_size(n) for n in (1, 5, 8, 9, 100, 200, 257)]
        [8, 8, 8, 12, 128, 256, 384]
    """
    size = 8
    while size < rows:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


@torch.no_grad()
def decode_rows(
    policy: Policy, prefilled: Prefill, sequences: Sequence[int], lengths: Sequence[int],
    limits: Sequence[int], uniforms_RT: Tensor, first_logits_RV: Tensor, config: SampleConfig,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(tokens [R, T], log-probabilities [R, T]); what follows a row's end means nothing."""
    R, room = uniforms_RT.shape
    graphs = graphs_for(policy.decoder, SlotCapacity(R, room, len(prefilled.hidden_N)))
    slots = graphs.slots
    slots.fill(prefilled, sequences, lengths, limits, uniforms_RT)
    how = DrawSettings(config.temperature, config.top_p, config.top_k, policy.end_tokens)
    graphs.draw_tokens(first_logits_RV, how, offset=0)
    batch = batch_size(R)
    for t in range(1, room):
        if t % FINISH_CHECK_INTERVAL == 0:
            left = int(slots.running[:batch].sum())
            if left == 0:
                break
            if batch_size(left) < batch:
                slots.drop_finished(batch)
                batch = batch_size(left)
        graphs.step(policy.decoder, batch, how)
    return slots.tokens[:R, :room], slots.logprobs[:R, :room]
