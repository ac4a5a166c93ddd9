"""The KV cache of the GPU sampler: fixed slots in memory, so that every decoding step is the same.

    prefix      every sequence once, packed, as the prefill computed it; rows point into it
    response    one slot for each row: its sampled tokens, [slots, K, new tokens, d] per layer
    rows        the slot that each place of the batch decodes; finished rows leave this list

A row never leaves its slot: nothing is copied when other rows finish, and the responses of a prompt
share its keys and values. The last slot is a spare one: places that only pad the batch decode into
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from counterpoise.model.decoder import Decoder
from counterpoise.sample.kv_cache import Fork, Prefill

KeysAndValues = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class SlotCapacity:
    """How many rows and tokens the slots can hold."""

    rows: int
    new_tokens: int  # sampled tokens of a row
    prefix_tokens: int  # of all prefixes together

    @property
    def total_tokens(self) -> int:
        """Tokens whose keys and values are allocated, the spare slot included."""
        return (self.rows + 1) * self.new_tokens + self.prefix_tokens

    def holds(self, other: SlotCapacity) -> bool:
        """Whether slots of this capacity can serve a batch that needs `other`."""
        return (
            other.rows <= self.rows
            and other.new_tokens <= self.new_tokens
            and other.prefix_tokens <= self.prefix_tokens
        )

    def with_room_for(self, other: SlotCapacity) -> SlotCapacity:
        """The smallest capacity that holds both."""
        return SlotCapacity(
            rows=max(self.rows, other.rows),
            new_tokens=max(self.new_tokens, other.new_tokens),
            prefix_tokens=max(self.prefix_tokens, other.prefix_tokens),
        )


class SlotAddresses(NamedTuple):
    """Which keys and values each row of a batch attends to."""

    rows: Tensor  # [R] slot of each row
    prefix_starts: Tensor  # [slots] first prefix token of each slot
    prefix_lengths: Tensor  # [slots]
    step: Tensor  # [1] tokens every row has sampled before the current one


class DecodeSlots:
    """An `attend` function for `Decoder`, and the state of the rows it decodes.

    Shapes and addresses never change after construction: a captured CUDA graph relies on them.
    """

    def __init__(self, decoder: Decoder, capacity: SlotCapacity) -> None:
        self.capacity = capacity
        self.spare_slot = capacity.rows
        device, slots, new_tokens = decoder.device, capacity.rows + 1, capacity.new_tokens
        K, d, layers = decoder.kv_heads, decoder.head_dim, len(decoder.layers)

        def integers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.long, device=device)

        # Zeros instead of uninitialised memory: the spare slot attends to steps that it never took,
        # and a single NaN among them would draw a token outside the vocabulary.
        def cache(*shape: int) -> list[Tensor]:
            return [torch.zeros(shape, dtype=decoder.dtype, device=device) for _ in range(layers)]

        self.prefix_keys = cache(capacity.prefix_tokens, K, d)
        self.prefix_values = cache(capacity.prefix_tokens, K, d)
        self.response_keys = cache(slots, K, new_tokens, d)
        self.response_values = cache(slots, K, new_tokens, d)
        self.prefix_starts, self.prefix_lengths = integers(slots), integers(slots)
        self.limits = integers(slots)  # maximum number of new tokens
        self.tokens = integers(slots, new_tokens)
        self.logprobs = torch.zeros(slots, new_tokens, device=device)
        self.uniforms = torch.zeros(slots, new_tokens, device=device)
        # Indexed by place in the batch, not by slot.
        self.rows, self.current = integers(slots), integers(slots)
        self.running = torch.zeros(slots, dtype=torch.bool, device=device)
        self.step = integers(1)  # tokens sampled by every row, the current one not counted

    def fill(self, prefilled: Prefill, forks: Sequence[Fork], uniforms_RT: Tensor) -> None:
        """Start a batch: fork r decodes in slot r."""
        R, N, device = len(forks), len(prefilled.hidden_N), self.step.device
        for static, computed in zip(self.prefix_keys, prefilled.keys, strict=True):
            static[:N] = computed
        for static, computed in zip(self.prefix_values, prefilled.values, strict=True):
            static[:N] = computed
        starts = [prefilled.starts[fork.sequence] for fork in forks]
        for column, values in (
            (self.prefix_starts, starts),
            (self.prefix_lengths, [fork.length for fork in forks]),
            (self.limits, [fork.max_new_tokens for fork in forks]),
        ):
            column[:R] = torch.tensor(values, device=device)
            column[R:] = 0
        self.uniforms[:R, : uniforms_RT.shape[1]] = uniforms_RT
        self.step.zero_()
        self.set_batch(torch.arange(R, device=device))

    def set_batch(self, rows: Tensor, current: Tensor | None = None) -> None:
        """Decode these slots from now on; the places after them decode into the spare slot."""
        num_rows = len(rows)
        self.rows[:num_rows] = rows
        self.rows[num_rows:] = self.spare_slot
        if current is not None:
            self.current[:num_rows] = current
        self.running[:num_rows] = True
        self.running[num_rows:] = False

    def drop_finished(self, batch: int) -> None:
        """Remove the finished rows among the first `batch` places."""
        still_running = self.running[:batch].nonzero().squeeze(1)
        self.set_batch(self.rows[still_running], self.current[still_running])

    def positions(self, batch: int) -> Tensor:
        """The position of the current token of the first `batch` places."""
        return self.prefix_lengths[self.rows[:batch]] + self.step

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None = None
    ) -> Tensor:
        assert window is None, "model/families.py refuses sliding windows on a GPU"
        prefix = self.prefix_keys[layer], self.prefix_values[layer]
        response = self.response_keys[layer], self.response_values[layer]
        addresses = SlotAddresses(
            self.rows[: len(q)], self.prefix_starts, self.prefix_lengths, self.step
        )
        if q.is_cuda:
            from counterpoise.sample.kernels.attention import decode_attention

            return decode_attention(q, k, v, prefix, response, addresses)
        return reference_attention(q, k, v, prefix, response, addresses)


def reference_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    prefix: KeysAndValues,
    response: KeysAndValues,
    addresses: SlotAddresses,
) -> Tensor:
    """The kernel's computation row by row: store k and v, then attend to prefix and response."""
    slots, prefix_starts, prefix_lengths, _ = addresses
    t = int(addresses.step)
    response[0][slots, :, t], response[1][slots, :, t] = k, v
    outputs = []
    for r, slot in enumerate(slots.tolist()):
        span = slice(int(prefix_starts[slot]), int(prefix_starts[slot] + prefix_lengths[slot]))
        keys, values = (
            torch.cat((of_prefix[span].transpose(0, 1), of_response[slot, :, : t + 1]), dim=1)
            for of_prefix, of_response in zip(prefix, response, strict=True)
        )
        queries_per_key = q.shape[1] // k.shape[1]
        query = q[r].unflatten(0, (-1, queries_per_key))  # [K, H / K, d]
        scores = query @ keys.transpose(1, 2) * q.shape[-1] ** -0.5
        outputs.append((scores.softmax(dim=-1) @ values).flatten(0, 1))
    return torch.stack(outputs)
