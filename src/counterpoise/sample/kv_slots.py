"""Where rows decode on a GPU: fixed places in memory, so that a step is always the same work.

    prefixes    every sequence once, side by side, as the prefill computed them; rows point at them
    own         a slot for each row: what it has drawn since, [slots, K, room, d] a layer
    rows        which slot each row of the batch decodes; finished rows leave this list

A row is its slot: nothing moves when others finish, and no key is stored twice for the responses of
a prompt. The last slot belongs to nobody: rows that only fill up a batch decode there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from counterpoise.model.decoder import Decoder
from counterpoise.sample.kv_cache import Prefill


@dataclass(frozen=True, slots=True)
class SlotCapacity:
    """What the slots have room for."""

    rows: int
    new_tokens: int  # tokens drawn in a row
    prefix_tokens: int  # tokens of all prefixes together

    @property
    def total_tokens(self) -> int:
        """Whose keys and values have a place; one slot belongs to nobody."""
        return (self.rows + 1) * self.new_tokens + self.prefix_tokens

    def holds(self, other: SlotCapacity) -> bool:
        return (
            other.rows <= self.rows
            and other.new_tokens <= self.new_tokens
            and other.prefix_tokens <= self.prefix_tokens
        )

    def with_room_for(self, other: SlotCapacity) -> SlotCapacity:
        return SlotCapacity(
            max(self.rows, other.rows),
            max(self.new_tokens, other.new_tokens),
            max(self.prefix_tokens, other.prefix_tokens),
        )


class DecodeSlots:
    """An `attend` for `Decoder`, and the books of the rows. Sizes and addresses never change."""

    def __init__(self, decoder: Decoder, capacity: SlotCapacity) -> None:
        self.capacity = capacity
        self.spare_slot = capacity.rows  # the slot that belongs to no row
        device, slots = decoder.device, capacity.rows + 1
        K, d, layers = decoder.kv_heads, decoder.head_dim, len(decoder.layers)

        def numbers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.long, device=device)

        def cache(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=decoder.dtype, device=device)

        self.prefix_keys = [cache(capacity.prefix_tokens, K, d) for _ in range(layers)]
        self.prefix_values = [cache(capacity.prefix_tokens, K, d) for _ in range(layers)]
        self.response_keys = [cache(slots, K, capacity.new_tokens, d) for _ in range(layers)]
        self.response_values = [cache(slots, K, capacity.new_tokens, d) for _ in range(layers)]
        self.prefix_starts, self.prefix_lengths, self.limits = (
            numbers(slots),
            numbers(slots),
            numbers(slots),
        )
        self.tokens = numbers(slots, capacity.new_tokens)
        self.logprobs = torch.zeros(slots, capacity.new_tokens, device=device)
        self.uniforms = torch.zeros(slots, capacity.new_tokens, device=device)
        self.rows, self.current = numbers(slots), numbers(slots)  # by place in the batch
        self.running = torch.zeros(slots, dtype=torch.bool, device=device)
        self.step = numbers(1)  # tokens every row has behind it, the current one not counted

    def fill(
        self, done: Prefill, sequences: Sequence[int], lengths: Sequence[int],
        limits: Sequence[int], uniforms_RT: Tensor,
    ) -> None:  # fmt: skip
        """Rows 0, 1, ... start after `lengths` tokens of their sequences."""
        R, N, device = len(lengths), len(done.hidden_N), self.step.device
        for to, computed in (
            (self.prefix_keys, done.keys), (self.prefix_values, done.values),
        ):  # fmt: skip
            for static, new in zip(to, computed, strict=True):
                static[:N] = new
        firsts = [done.starts[s] for s in sequences]
        for column, values in (
            (self.prefix_starts, firsts),
            (self.prefix_lengths, lengths),
            (self.limits, limits),
        ):
            column[:R] = torch.tensor(values, device=device)
            column[R:] = 0
        self.uniforms[:R, : uniforms_RT.shape[1]] = uniforms_RT
        self.step.zero_()
        self.set_batch(torch.arange(R, device=device))

    def set_batch(self, rows: Tensor, current: Tensor | None = None) -> None:
        """The batch is these slots from now on; the places after them are filled up with nobody."""
        n = len(rows)
        self.rows[:n] = rows
        self.rows[n:] = self.spare_slot
        if current is not None:
            self.current[:n] = current
        self.running[:n] = True
        self.running[n:] = False

    def drop_finished(self, batch: int) -> None:
        """Drop the rows of the first `batch` places that have finished."""
        going = self.running[:batch].nonzero().squeeze(1)
        self.set_batch(self.rows[going], self.current[going])

    def positions(self, batch: int) -> Tensor:
        return self.prefix_lengths[self.rows[:batch]] + self.step

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        prefix = self.prefix_keys[layer], self.prefix_values[layer]
        own = self.response_keys[layer], self.response_values[layer]
        where = self.rows[: len(q)], self.prefix_starts, self.prefix_lengths, self.step
        if q.is_cuda:
            from counterpoise.sample.kernels.attention import decode_attention

            return decode_attention(q, k, v, prefix, own, *where)
        return reference_attention(q, k, v, prefix, own, *where)


def reference_attention(
    q: Tensor, k: Tensor, v: Tensor, prefix: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor],
    slots: Tensor, firsts: Tensor, lengths: Tensor, step: Tensor,
) -> Tensor:  # fmt: skip
    """What the kernel computes, row by row: store, then attend to prefix and own past."""
    t = int(step)
    own[0][slots, :, t], own[1][slots, :, t] = k, v
    mixed = []
    for r, slot in enumerate(slots.tolist()):
        span = slice(int(firsts[slot]), int(firsts[slot] + lengths[slot]))
        keys, values = (
            torch.cat((before[span].transpose(0, 1), mine[slot, :, : t + 1]), dim=1)
            for before, mine in zip(prefix, own, strict=True)
        )
        share = q.shape[1] // k.shape[1]
        query = q[r].unflatten(0, (-1, share))  # [K, share, d]
        scores = query @ keys.transpose(1, 2) * q.shape[-1] ** -0.5
        mixed.append((scores.softmax(dim=-1) @ values).flatten(0, 1))
    return torch.stack(mixed)
