"""GPU decoding: each decoding step is captured once as a CUDA graph and replayed for every token.

A decoded token takes some 240 small kernels, which cost more to launch than to compute. All memory
that a step touches stays in place (`sample/kv_slots.py`), and the weights are the trainer's own
tensors, updated in place, so a graph captured once serves every later iteration.

Finished rows are removed at intervals, after which a smaller graph suffices. Batches therefore come
in a few sizes, and each size is captured when it is first needed: its first step runs eagerly
(which also compiles its kernels), then the step is captured, and all later ones are replayed. On a
CPU every step runs eagerly.
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
from counterpoise.model.load import AnyDecoder, Policy, require_fast_path
from counterpoise.sample.choose_token import choose_tokens
from counterpoise.sample.kv_budget import kv_bytes_allowed
from counterpoise.sample.kv_cache import Fork, Prefill
from counterpoise.sample.kv_slots import DecodeSlots, SlotCapacity

# Counting the running rows makes the host wait for the GPU, so it is done every so many tokens.
FINISH_CHECK_INTERVAL = 16
# Capacities are rounded up to multiples, so that they, and with them the graphs, seldom change.
PREFIX_MULTIPLE, ROOM_MULTIPLE = 4096, 64


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
        hidden = decoder(slots.current[:batch], slots.positions(batch), slots)
        self.draw_tokens(hidden @ decoder.unembedding.T, settings, offset=1)
        slots.step += 1

    def draw_tokens(self, logits_RV: Tensor, settings: DrawSettings, *, offset: int) -> None:
        """Sample token `step + offset` of every row of the batch and update the slots."""
        slots, R = self.slots, len(logits_RV)
        rows, current, running = slots.rows[:R], slots.current[:R], slots.running[:R]
        # The tensor is created once, outside any capture: a capture cannot copy from the host.
        if settings not in self._end_tokens:
            self._end_tokens[settings] = torch.tensor(settings.end_tokens, device=logits_RV.device)
        end_tokens = self._end_tokens[settings]
        if logits_RV.is_cuda:
            from counterpoise.sample.kernels.draw import draw_tokens

            draw_tokens(
                logits_RV,
                slots=rows,
                uniforms=slots.uniforms,
                step=slots.step,
                end_tokens=end_tokens,
                limits=slots.limits,
                tokens=slots.tokens,
                logprobs=slots.logprobs,
                current=current,
                running=running,
                temperature=settings.temperature,
                top_p=settings.top_p,
                top_k=settings.top_k,
                offset=offset,
            )
            return
        t = slots.step + offset
        uniforms = slots.uniforms[rows, t]
        tokens, logprobs = choose_tokens(
            logits_RV.float(), uniforms, settings.temperature, settings.top_p, settings.top_k
        )
        slots.tokens[rows, t], slots.logprobs[rows, t] = tokens, logprobs
        current.copy_(tokens)
        running &= ~torch.isin(tokens, end_tokens) & (t + 1 < slots.limits[rows])


_GRAPHS: WeakKeyDictionary[AnyDecoder, DecodeGraphs] = WeakKeyDictionary()


def graphs_for(decoder: Decoder, needed: SlotCapacity) -> DecodeGraphs:
    """The decoder's graphs, rebuilt if they are too small or the weights have moved in memory."""
    existing = _GRAPHS.get(decoder)
    if (
        existing
        and existing.slots.capacity.holds(needed)
        and existing.weight_addresses == decoder.tensor_addresses
    ):
        return existing
    needed = round_up_capacity(needed)
    if existing:
        # Serve the old needs too if memory allows, so that batches which alternate between two
        # shapes do not rebuild the graphs each time. Few long rows and many short ones together
        # would mean many long rows, which may not fit: then only the new needs count.
        combined = needed.with_room_for(existing.slots.capacity)
        bytes_needed = combined.total_tokens * decoder.kv_bytes_per_token
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
    """Bytes of keys and values that the decoder's slots hold now."""
    existing = _GRAPHS.get(decoder)
    return existing.slots.capacity.total_tokens * decoder.kv_bytes_per_token if existing else 0


def round_up_capacity(capacity: SlotCapacity) -> SlotCapacity:
    """The next larger capacity of the few sizes in use."""
    return SlotCapacity(
        rows=batch_size(capacity.rows),
        new_tokens=-(-capacity.new_tokens // ROOM_MULTIPLE) * ROOM_MULTIPLE,
        prefix_tokens=-(-capacity.prefix_tokens // PREFIX_MULTIPLE) * PREFIX_MULTIPLE,
    )


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


@torch.no_grad()
def decode_rows(
    policy: Policy,
    prefilled: Prefill,
    forks: Sequence[Fork],
    uniforms_RT: Tensor,
    first_logits_RV: Tensor,
    config: SampleConfig,
) -> tuple[Tensor, Tensor]:
    """(tokens [R, T], log-probabilities [R, T]); entries after a row's end are undefined."""
    R, max_new_tokens = uniforms_RT.shape
    needed = SlotCapacity(R, max_new_tokens, len(prefilled.hidden_N))
    decoder = require_fast_path(policy, "decoding with CUDA graphs")
    graphs = graphs_for(decoder, needed)
    slots = graphs.slots
    slots.fill(prefilled, forks, uniforms_RT)
    settings = DrawSettings(config.temperature, config.top_p, config.top_k, policy.end_tokens)
    graphs.draw_tokens(first_logits_RV, settings, offset=0)
    batch = batch_size(R)
    for t in range(1, max_new_tokens):
        if t % FINISH_CHECK_INTERVAL == 0:
            num_running = int(slots.running[:batch].sum())
            if num_running == 0:
                break
            if batch_size(num_running) < batch:
                slots.drop_finished(batch)
                batch = batch_size(num_running)
        graphs.step(decoder, batch, settings)
    return slots.tokens[:R, :max_new_tokens], slots.logprobs[:R, :max_new_tokens]
