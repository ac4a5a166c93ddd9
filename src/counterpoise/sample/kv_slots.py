"""The KV cache of the GPU sampler: fixed slots in memory, so that every decoding step is the same.

    prefix      every sequence once, as the prefill computed it; rows point into it
    response    keys and values of sampled tokens, by pages: [pages, K, page tokens, d] per layer
    slot        of a row: its sampled tokens, its position, and which pages are its own
    rows        the slot that each place of the batch decodes; finished rows leave this list

If all rows fit at full length, a page is as long as a row and page i belongs to slot i. Otherwise
pages are short, and a row holds only those that its tokens have reached, so that rows of uneven
length share the memory:

    page table      slot 0: pages 7 2 9 .       a row of up to 3 * PAGE_TOKENS tokens so far
                    slot 1: pages 4 . . .       `PageMemory` decides, the kernel looks it up

A row never leaves its slot: nothing is copied when other rows finish, and the responses of a prompt
share its keys and values. When a row has finished, the next one that waits takes its slot; a prefix
is freed when the last of its rows has finished. The last slot and the last page are spare ones:
places that only pad the batch decode into them.

Every row has a position of its own, so rows may start at any time. A row that has finished stands
still, whatever is decoded beside it, until it is taken from its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from counterpoise.model.decoder import Decoder
from counterpoise.sample.fork_queue import draw_uniforms
from counterpoise.sample.kv_budget import PAGE_TOKENS, SAMPLE_BYTES
from counterpoise.sample.kv_cache import Fork, Prefill
from counterpoise.types import Floats, Ints

KeysAndValues = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class SlotCapacity:
    """How many rows and tokens the slots can hold.

    Example:
        SlotCapacity(512, 8192, 8192, pages=4096): 512 rows share 4,096 pages of 128 tokens
    """

    rows: int
    new_tokens: int  # sampled tokens of a row
    prefix_tokens: int  # of all prefixes together
    pages: int = 0  # shared by all rows; 0 if every row has the memory of its full length

    @property
    def page_tokens(self) -> int:
        return PAGE_TOKENS if self.pages else self.new_tokens

    @property
    def needed_pages(self) -> int:
        """`pages`; without shared pages, as many as all rows would take at full length."""
        return self.pages or self.rows * num_pages(self.new_tokens)

    @property
    def total_tokens(self) -> int:
        """Tokens whose keys and values are allocated, the spare page included."""
        return ((self.pages or self.rows) + 1) * self.page_tokens + self.prefix_tokens

    def num_bytes(self, kv_bytes_per_token: int) -> int:
        """Memory of the keys and values, and of what the slots themselves store."""
        sample_bytes = (self.rows + 1) * self.new_tokens * SAMPLE_BYTES
        return self.total_tokens * kv_bytes_per_token + sample_bytes

    def holds(self, other: SlotCapacity) -> bool:
        """Whether slots of this capacity can serve a batch that needs `other`."""
        return (
            other.rows <= self.rows
            and other.new_tokens <= self.new_tokens
            and other.prefix_tokens <= self.prefix_tokens
            and (not self.pages or other.needed_pages <= self.pages)
        )

    def with_room_for(self, other: SlotCapacity) -> SlotCapacity:
        """The smallest capacity that holds both; its rows share pages if those of either do."""
        return SlotCapacity(
            rows=max(self.rows, other.rows),
            new_tokens=max(self.new_tokens, other.new_tokens),
            prefix_tokens=max(self.prefix_tokens, other.prefix_tokens),
            pages=max(self.needed_pages, other.needed_pages) if self.pages or other.pages else 0,
        )


def num_pages(num_tokens: int) -> int:
    """Pages that hold so many tokens of a row."""
    return -(-num_tokens // PAGE_TOKENS)


class PrefixMemory:
    """Which tokens of the prefix memory are in use: an interval for every prefilled sequence."""

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self._intervals: dict[int, tuple[int, int]] = {}  # by start: (length, its rows)

    def allocate(self, num_tokens: int) -> int | None:
        """The start of the first gap that is long enough; None if there is none now."""
        start = 0
        for interval_start, (length, _) in sorted(self._intervals.items()):
            if interval_start - start >= num_tokens:
                break
            start = interval_start + length
        if start + num_tokens > self.num_tokens:
            return None
        self._intervals[start] = num_tokens, 0
        return start

    def hold_for_row(self, start: int) -> None:
        """One row more needs the interval."""
        length, num_rows = self._intervals[start]
        self._intervals[start] = length, num_rows + 1

    def release_row(self, start: int) -> None:
        """One row fewer needs the interval; without rows it is free."""
        length, num_rows = self._intervals.pop(start)
        if num_rows > 1:
            self._intervals[start] = length, num_rows - 1


class PageMemory:
    """Which pages each slot holds. A page is free or belongs to exactly one slot.

    `table` [slots, pages of a whole row] is what the kernel reads: the pages of a slot's row in the
    order of its tokens. Entries beyond those that the slot holds mean nothing; the spare slot
    always has the spare page.
    """

    def __init__(self, capacity: SlotCapacity) -> None:
        self.num_pages = capacity.pages
        shape = capacity.rows + 1, num_pages(capacity.new_tokens)
        self.table = np.full(shape, capacity.pages, dtype=np.int32)
        self.has_changed = True  # since the table was last copied to the device
        self._free_pages = list(range(capacity.pages))
        self._pages_of_slot: list[list[int]] = [[] for _ in range(capacity.rows)]

    @property
    def num_free(self) -> int:
        return len(self._free_pages)

    def num_held(self, slot: int) -> int:
        """The number of pages of this slot."""
        return len(self._pages_of_slot[slot])

    def grow(self, slot: int, num_tokens: int) -> bool:
        """Give the slot pages for so many tokens; False, and nothing changes, if too few are free.

        It keeps those that it has.
        """
        pages = self._pages_of_slot[slot]
        num_missing = num_pages(num_tokens) - len(pages)
        if num_missing > len(self._free_pages):
            return False
        for _ in range(num_missing):
            page = self._free_pages.pop()
            self.table[slot, len(pages)] = page
            pages.append(page)
            self.has_changed = True
        return True

    def release(self, slot: int) -> None:
        """Free all pages of the slot."""
        self._free_pages += self._pages_of_slot[slot]
        self._pages_of_slot[slot] = []


class SlotAddresses(NamedTuple):
    """Which keys and values each row of a batch attends to."""

    rows: Tensor  # [R] slot of each row
    prefix_starts: Tensor  # [slots] first prefix token of each slot
    prefix_lengths: Tensor  # [slots]
    positions: Tensor  # [R] of each row's current token, counted from the start of its prefix
    page_table: Tensor | None = None  # [slots, pages of a row]; None: page i is that of slot i


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

        # Zeros instead of uninitialised memory, which may hold NaN. Rows read only what they have
        # stored; zeros keep a mistake in an address from spreading to every row.
        def cache(*shape: int) -> list[Tensor]:
            return [torch.zeros(shape, dtype=decoder.dtype, device=device) for _ in range(layers)]

        self.prefix_keys = cache(capacity.prefix_tokens, K, d)
        self.prefix_values = cache(capacity.prefix_tokens, K, d)
        pages = (capacity.pages or capacity.rows) + 1
        self.response_keys = cache(pages, K, capacity.page_tokens, d)
        self.response_values = cache(pages, K, capacity.page_tokens, d)
        self.page_table: Tensor | None = None
        if capacity.pages:
            self.page_table = torch.from_numpy(PageMemory(capacity).table).to(device)
        self.prefix_starts, self.prefix_lengths = integers(slots), integers(slots)
        self.limits = integers(slots)  # maximum number of new tokens
        self.tokens = integers(slots, new_tokens)
        self.logprobs = torch.zeros(slots, new_tokens, device=device)
        self.uniforms = torch.zeros(slots, new_tokens, device=device)
        # Indexed by place in the batch, not by slot.
        self.rows, self.current, self.positions = (integers(slots) for _ in range(3))
        self.running = torch.zeros(slots, dtype=torch.bool, device=device)
        self.set_batch([])

    def store_prefixes(self, prefilled: Prefill, spans: Sequence[tuple[int, int]]) -> None:
        """Copy the sequences of a prefill to these (start, length) of the prefix memory."""
        destination: slice | Tensor
        starts = [start for start, _ in spans]
        ends = [start + length for start, length in spans]
        if starts[1:] == ends[:-1]:  # consecutive, as in an empty memory: no index is needed
            destination = slice(starts[0], ends[-1])
        else:
            indices = [torch.arange(start, start + length) for start, length in spans]
            destination = torch.cat(indices).to(self.rows.device)
        for memory, computed in (
            (self.prefix_keys, prefilled.keys),
            (self.prefix_values, prefilled.values),
        ):
            for static, computed_N in zip(memory, computed, strict=True):
                static[destination] = computed_N

    def start_rows(
        self, slots: Sequence[int], forks: Sequence[Fork], starts: Sequence[int], first_place: int
    ) -> None:
        """Start forks in these slots, in consecutive places; `starts`: of their prefixes."""
        device, num_rows = self.rows.device, len(slots)
        slots_R = torch.tensor(slots, device=device)
        lengths_R = torch.tensor([fork.length for fork in forks], device=device)
        self.prefix_starts[slots_R] = torch.tensor(starts, device=device)
        self.prefix_lengths[slots_R] = lengths_R
        self.limits[slots_R] = torch.tensor([fork.max_new_tokens for fork in forks], device=device)
        num_uniforms = max(fork.max_new_tokens for fork in forks)
        self.uniforms[slots_R, :num_uniforms] = draw_uniforms(forks, num_uniforms, device)
        places = slice(first_place, first_place + num_rows)
        self.rows[places], self.positions[places] = slots_R, lengths_R
        self.running[places] = True

    def restart_rows(self, slots: Sequence[int], first_place: int) -> None:
        """Give interrupted rows places again; they decode from their first sampled token on."""
        slots_R = torch.tensor(slots, device=self.rows.device)
        places = slice(first_place, first_place + len(slots))
        self.rows[places], self.positions[places] = slots_R, self.prefix_lengths[slots_R]
        self.current[places] = self.tokens[slots_R, 0]
        self.running[places] = True

    def set_page_table(self, pages: PageMemory) -> None:
        """Copy the table to the device if it has changed."""
        assert self.page_table is not None
        if pages.has_changed:
            self.page_table.copy_(torch.from_numpy(pages.table))
            pages.has_changed = False

    def set_batch(self, places: Sequence[int]) -> None:
        """Keep the rows of these places, in this order; all further places decode nothing."""
        num_rows = len(places)
        places_R = torch.tensor(places, dtype=torch.long, device=self.rows.device)
        for column in (self.rows, self.current, self.positions, self.running):
            column[:num_rows] = column[places_R]
        self.rows[num_rows:] = self.spare_slot
        self.positions[num_rows:] = 0
        self.running[num_rows:] = False

    def read_rows(self, places: Sequence[int]) -> list[tuple[Ints, Floats]]:
        """(tokens, log-probabilities) that the rows of these places have sampled so far."""
        places_R = torch.tensor(places, device=self.rows.device)
        slots_R = self.rows[places_R]
        lengths = (self.positions[places_R] - self.prefix_lengths[slots_R] + 1).tolist()
        tokens = self.tokens[slots_R, : max(lengths)].int().cpu().numpy()
        logprobs = self.logprobs[slots_R, : max(lengths)].cpu().numpy()
        return [
            (tokens[row, :length].copy(), logprobs[row, :length].copy())
            for row, length in enumerate(lengths)
        ]

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, window: int | None = None
    ) -> Tensor:
        assert window is None, "model/families.py refuses sliding windows on a GPU"
        prefix = self.prefix_keys[layer], self.prefix_values[layer]
        response = self.response_keys[layer], self.response_values[layer]
        addresses = SlotAddresses(
            self.rows[: len(q)],
            self.prefix_starts,
            self.prefix_lengths,
            self.positions[: len(q)],
            self.page_table,
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
    slots, prefix_starts, prefix_lengths, positions, page_table = addresses
    page_tokens = response[0].shape[2]
    if page_table is None:
        page_table = torch.arange(len(prefix_starts), device=slots.device)[:, None]
    steps = positions - prefix_lengths[slots]
    pages, steps_in_page = page_table[slots, steps // page_tokens].long(), steps % page_tokens
    response[0][pages, :, steps_in_page], response[1][pages, :, steps_in_page] = k, v
    outputs = []
    for r, (slot, t) in enumerate(zip(slots.tolist(), steps.tolist(), strict=True)):
        span = slice(int(prefix_starts[slot]), int(prefix_starts[slot] + prefix_lengths[slot]))
        row_pages = page_table[slot, : t // page_tokens + 1].long()
        keys, values = (
            torch.cat(
                (
                    of_prefix[span].transpose(0, 1),
                    of_response[row_pages].transpose(0, 1).flatten(1, 2)[:, : t + 1],
                ),
                dim=1,
            )
            for of_prefix, of_response in zip(prefix, response, strict=True)
        )
        queries_per_key = q.shape[1] // k.shape[1]
        query = q[r].unflatten(0, (-1, queries_per_key))  # [K, H / K, d]
        scores = query @ keys.transpose(1, 2) * q.shape[-1] ** -0.5
        outputs.append((scores.softmax(dim=-1) @ values).flatten(0, 1))
    return torch.stack(outputs)
