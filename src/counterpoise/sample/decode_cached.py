"""Decoding on a CPU, and on the general path: one token per row and pass.

A finished row's place goes to a waiting row at once (on the general path no row waits):

    rows waiting       the place is refilled before the next pass, so that every pass is full
    no more waiting    finished rows stay in the batch until one in COMPACTION_DIVISOR has finished,
                       then the cache is compacted: copying it for every row would cost more

Every row has random numbers of its own, so its tokens depend neither on its place nor on the rows
beside it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from counterpoise.config import SampleConfig
from counterpoise.model.cpu_products import products_of_few_rows
from counterpoise.model.decoder import Decoder
from counterpoise.model.head import cap_logits
from counterpoise.model.load import AnyDecoder, Policy
from counterpoise.model.row_cache import RowCache
from counterpoise.sample.choose_token import choose_tokens
from counterpoise.sample.fork_queue import (
    DecodedRows,
    ForkQueue,
    ReadyForks,
    draw_uniforms,
    exclude_tokens,
)
from counterpoise.sample.kv_cache import Fork, KVCache

COMPACTION_DIVISOR = 8  # the cache is compacted once one row in this many has finished


class CachedRows:
    """The rows that are being decoded, each in a place of the cache.

    A row keeps its slot, a line of `tokens`, `logprobs` and `uniforms`, while compaction may change
    its place.
    """

    def __init__(self, policy: Policy, config: SampleConfig, num_places: int, limit: int) -> None:
        """No row may have more than `limit` new tokens."""
        self.policy, self.config, self.limit = policy, config, limit
        self.row_passes = 0  # places decoded, summed over all passes; finished rows count too
        self.decoded: DecodedRows = {}
        device = policy.device

        def integers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.long, device=device)

        self.end_tokens = torch.tensor(policy.end_tokens, device=device)
        # By slot.
        self.fork_of_slot = num_places * [-1]
        self.tokens, self.limits = integers(num_places, limit), integers(num_places)
        self.logprobs = torch.zeros(num_places, limit, device=device)
        self.uniforms = torch.zeros(num_places, limit, device=device)
        # By place.
        self.slots = torch.arange(num_places, device=device)
        self.steps = integers(num_places)  # new tokens so far
        self.positions = integers(num_places)
        self.current = integers(num_places)
        self.running = torch.zeros(num_places, dtype=torch.bool, device=device)

    def start(self, places: Tensor, ready: ReadyForks) -> None:
        """Start prefilled forks in these places of the cache and draw their first tokens."""
        logits = head_logits(self.policy.decoder, ready.hidden_RD)
        self.start_forks(places, ready.indices, ready.forks, logits)

    def start_forks(
        self, places: Tensor, indices: list[int], forks: list[Fork], logits_RV: Tensor
    ) -> None:
        """Start forks whose first token follows from these logits."""
        slots, device = self.slots[places], self.slots.device
        for slot, index in zip(slots.tolist(), indices, strict=True):
            self.fork_of_slot[slot] = index
        self.uniforms[slots] = draw_uniforms(forks, self.limit, device)
        self.limits[slots] = torch.tensor([fork.max_new_tokens for fork in forks], device=device)
        self.positions[places] = torch.tensor([fork.length for fork in forks], device=device)
        self.steps[places] = 0
        self.running[places] = True
        exclude_tokens(logits_RV, forks)
        self._draw(places, logits_RV)

    def decode_next(self, cache: KVCache | RowCache) -> None:
        """One pass over all places: the next token of every row."""
        decoder = self.policy.decoder
        cache.advance()
        if isinstance(cache, RowCache):
            hidden_R = cache.read_next(self.current, self.positions)
        else:
            assert isinstance(decoder, Decoder)
            hidden_R = decoder(self.current, self.positions, cache)
        self.row_passes += len(self.current)
        # The position of a finished row stays the same: further ones might exceed the rotary table.
        self.positions = self.positions + self.running
        self._draw(slice(None), head_logits(decoder, hidden_R))

    def _draw(self, places: Tensor | slice, logits_RV: Tensor) -> None:
        """Draw a token for each of these places; rows that end with it go to `decoded`."""
        # A finished row may stay in the batch for more passes than its line has columns.
        slots, steps = self.slots[places], self.steps[places].clamp(max=self.limit - 1)
        config, was_running = self.config, self.running[places]
        new_tokens, new_logprobs = choose_tokens(
            logits_RV.float(),
            self.uniforms[slots, steps],
            config.temperature,
            config.top_p,
            config.top_k,
        )
        self.tokens[slots, steps] = new_tokens
        self.logprobs[slots, steps] = new_logprobs
        self.current[places] = new_tokens
        self.steps[places] = steps + 1
        goes_on = ~torch.isin(new_tokens, self.end_tokens) & (steps + 1 < self.limits[slots])
        has_ended = was_running & ~goes_on
        self.running[places] = was_running & goes_on
        for row in has_ended.nonzero().squeeze(1).tolist():
            slot, length = int(slots[row]), int(steps[row]) + 1
            self.decoded[self.fork_of_slot[slot]] = (
                self.tokens[slot, :length].int().cpu().numpy(),
                # A copy, because another row will overwrite the line.
                self.logprobs[slot, :length].cpu().numpy().copy(),
            )

    def compact(self, cache: KVCache | RowCache) -> None:
        """Drop the finished rows from the batch and from the cache."""
        places = self.running.nonzero().squeeze(1)
        cache.keep_rows(places)
        self.slots, self.steps = self.slots[places], self.steps[places]
        self.positions, self.current = self.positions[places], self.current[places]
        self.running = self.running[places]


def decode_queue(
    policy: Policy, cache: KVCache, queue: ForkQueue, config: SampleConfig
) -> CachedRows:
    """Decode every fork of the queue in the places of the cache."""
    num_places = len(cache.row_starts)
    limit = max(fork.max_new_tokens for fork in queue.forks)
    rows = CachedRows(policy, config, num_places, limit)
    is_refilled = len(queue) > num_places
    while True:
        # A row may end with its first token: then its place is free again.
        while len(queue) and not bool(rows.running.all()):
            if queue.needs_prefill:
                queue.prefill_next()
            free_places = (~rows.running).nonzero().squeeze(1)
            ready = queue.take(len(free_places))
            places = free_places[: len(ready.forks)]
            lengths_R = torch.tensor([fork.length for fork in ready.forks], device=ready.device)
            starts_R = torch.tensor(ready.starts, device=ready.device)
            cache.place_rows(places, ready.prefilled, starts_R, lengths_R)
            rows.start(places, ready)
        if not decode_once(rows, cache, trim=is_refilled):
            return rows


def decode_once(rows: CachedRows, cache: KVCache | RowCache, *, trim: bool = False) -> bool:
    """One pass over the rows, after a compaction if it is due; False if all rows have finished.

    `trim`: attention skips the columns that no row uses any more.
    """
    num_running = int(rows.running.sum())
    if num_running == 0:
        return False
    num_finished = len(rows.running) - num_running
    is_due = num_finished >= max(1, len(rows.running) // COMPACTION_DIVISOR)
    # Finished rows would keep the columns from being moved to the front.
    is_full = isinstance(cache, KVCache) and cache.is_full and num_finished > 0
    if is_due or is_full:
        rows.compact(cache)
    if trim and isinstance(cache, KVCache):
        cache.skip_unused_columns()
    with products_of_few_rows(rows.policy.device, rows.policy.decoder.dtype):
        rows.decode_next(cache)
    return True


def head_logits(decoder: AnyDecoder, hidden_RD: Tensor) -> Tensor:
    """The model's logits [R, V], with its soft cap if it has one."""
    return cap_logits(hidden_RD @ decoder.unembedding.T, decoder.softcap)
