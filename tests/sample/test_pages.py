"""Rows that share pages: the same tokens, however few pages there are, and no page in two rows."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import tiny
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from counterpoise.model.load import Policy
from counterpoise.sample import decode_graphs, decode_slots, kv_slots
from counterpoise.sample.decode_graphs import DecodeGraphs, DrawSettings, graphs_for, plan_slots
from counterpoise.sample.decode_slots import SlotDecoding
from counterpoise.sample.fork_queue import DecodedRows, ForkQueue
from counterpoise.sample.kv_cache import Fork
from counterpoise.sample.kv_slots import (
    PageMemory,
    SlotAddresses,
    SlotCapacity,
    num_pages,
    reference_attention,
)

PROMPT_TOKENS = (3, 9, 1, 6)
HANG_SECONDS = 300  # each test takes a few


@pytest.fixture(autouse=True)
def hanging_is_a_failure() -> Iterator[None]:
    """Rows that wait for each other's pages would be decoded for ever."""

    def fail(*_: object) -> None:
        pytest.fail(f"decoding did not end within {HANG_SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(HANG_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@cache
def endless_policy() -> Policy:
    """Every row takes exactly `max_new_tokens`."""
    policy = replace(tiny.policy(), end_tokens=(-1,))
    policy.decoder.reserve(64)
    return policy


class CheckedDecoding(SlotDecoding):
    """Checks after every look that each page belongs to one row, and that the oldest row stays."""

    def __init__(self, queue: ForkQueue, graphs: DecodeGraphs, settings: DrawSettings) -> None:
        super().__init__(queue, graphs, settings)
        self.most_rows = 0

    def _provide_pages(self) -> bool:
        rows_before = [row.fork_index for row in self._rows]
        was_interrupted = super()._provide_pages()
        rows, pages, slots = self._rows, self._pages, self.graphs.slots
        assert pages is not None
        assert slots.page_table is not None
        assert [row.fork_index for row in rows] == rows_before[: len(rows)]
        assert bool(rows) == bool(rows_before)
        self.most_rows = max(self.most_rows, len(rows))
        row_pages = []
        for row in rows:
            tokens = self._step - row.start_step + decode_slots.FINISH_CHECK_INTERVAL
            assert pages.num_held(row.slot) == num_pages(min(tokens, row.max_new_tokens))
            row_pages += slots.page_table[row.slot, : pages.num_held(row.slot)].tolist()
        assert len(set(row_pages)) == len(row_pages)
        assert len(row_pages) + pages.num_free == pages.num_pages
        spare_pages = slots.page_table[slots.spare_slot].tolist()
        assert set(spare_pages) == {pages.num_pages}
        assert not any(pages.num_held(row.slot) for row in self._interrupted)
        return was_interrupted

    def assert_nothing_is_held(self) -> None:
        assert self._pages is not None
        assert self._pages.num_free == self._pages.num_pages
        assert sorted(self._free_slots) == list(range(self.graphs.slots.capacity.rows))
        assert self._interrupted == []
        memory = self._prefix_memory
        assert memory.allocate(memory.num_tokens) == 0  # no interval is in use


def decode(
    policy: Policy, limits: list[int], capacity: SlotCapacity
) -> tuple[SlotDecoding, DecodedRows]:
    rng = np.random.default_rng(0)
    sequences = [rng.integers(2, tiny.VOCABULARY, n).astype(np.int32) for n in PROMPT_TOKENS]
    forks = [
        Fork(row % 4, PROMPT_TOKENS[row % 4], seed=row, max_new_tokens=limit)
        for row, limit in enumerate(limits)
    ]
    queue = ForkQueue(policy.decoder, sequences, forks)
    draw_settings = DrawSettings(1.0, 1.0, 0, policy.end_tokens)
    decoding_class = CheckedDecoding if capacity.pages else SlotDecoding
    decoding = decoding_class(queue, DecodeGraphs(policy.decoder, capacity), draw_settings)
    with torch.no_grad():
        return decoding, decoding.run()


def assert_same(left: DecodedRows, right: DecodedRows) -> None:
    assert sorted(left) == sorted(right)
    for index, (tokens, logprobs) in left.items():
        np.testing.assert_array_equal(tokens, right[index][0])
        np.testing.assert_allclose(logprobs, right[index][1], atol=2e-5)


@settings(max_examples=10, derandomize=True)
@given(
    st.lists(st.integers(1, 16) | st.just(16), min_size=2, max_size=8),
    st.integers(0, 8),
    st.integers(1, 8),
    st.sampled_from([2, 4, 8]),
    st.sampled_from([1, 3, 16]),
    st.sampled_from([10, 19, 64]),
    st.booleans(),
)
@example([16] * 8, 0, 8, 4, 3, 64, False)  # a single row of full length fits
def test_any_number_of_pages_samples_the_same_tokens(
    limits: list[int],
    more_pages: int,
    slots: int,
    page_tokens: int,
    interval: int,
    prefix_tokens: int,
    ends_early: bool,
) -> None:
    policy = endless_policy()
    if ends_early:
        policy = replace(policy, end_tokens=(1, 5, 17, 23))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_slots, "PAGE_TOKENS", page_tokens)
        patch.setattr(decode_slots, "FINISH_CHECK_INTERVAL", interval)
        _, expected = decode(policy, limits, SlotCapacity(8, 16, 64))
        capacity = SlotCapacity(slots, 16, prefix_tokens, num_pages(max(limits)) + more_pages)
        decoding, decoded = decode(policy, limits, capacity)
    assert_same(expected, decoded)
    assert isinstance(decoding, CheckedDecoding)
    decoding.assert_nothing_is_held()


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_slots, "PAGE_TOKENS", 4)
    monkeypatch.setattr(decode_slots, "FINISH_CHECK_INTERVAL", 2)


def test_uneven_rows_run_side_by_side_where_few_of_full_length_would_fit(
    small_pages: None,
) -> None:
    """Two rows of 40 tokens and fourteen of 3: 20 pages of 4 would hold two slots of 40."""
    policy, limits = endless_policy(), [40] + 14 * [3] + [40]
    shared, decoded = decode(policy, limits, SlotCapacity(16, 40, 64, pages=20))
    two_slots, expected = decode(policy, limits, SlotCapacity(2, 40, 64))
    assert_same(expected, decoded)
    assert isinstance(shared, CheckedDecoding)
    # At first a row is expected to take an eighth of 10 pages.
    assert (shared.restarts, shared.most_rows) == (0, 10)
    assert (shared._step, two_slots._step) == (41, 67)


def test_rows_that_all_reach_their_limit_begin_again_once_at_most(small_pages: None) -> None:
    """Pages for four whole rows: twelve start, eight of them wait, then four start at a time."""
    policy, limits = endless_policy(), 12 * [40]
    decoding, decoded = decode(policy, limits, SlotCapacity(12, 40, 64, pages=40))
    assert sorted(len(tokens) for tokens, _ in decoded.values()) == 12 * [40]
    assert isinstance(decoding, CheckedDecoding)
    assert decoding.most_rows == 12
    assert decoding.restarts == 12 - 4
    assert decoding._expected_row_pages == 10
    assert decoding._step == 3 * 39


def test_a_row_that_began_again_ends_like_one_that_did_not(small_pages: None) -> None:
    policy = replace(endless_policy(), end_tokens=(1, 5, 17, 23))
    limits = 8 * [40]
    decoding, decoded = decode(policy, limits, SlotCapacity(8, 40, 64, pages=11))
    assert decoding.restarts > 0
    assert_same(decode(policy, limits, SlotCapacity(8, 40, 64))[1], decoded)
    lengths = {len(tokens) for tokens, _ in decoded.values()}
    assert len(lengths) > 2
    assert decoding.row_steps > 8 * max(lengths)


@given(
    st.integers(1, 6), st.integers(1, 20), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)))
)
@settings(derandomize=True)
def test_a_page_is_free_or_belongs_to_one_slot(
    slots: int, pages: int, changes: list[tuple[int, int]]
) -> None:
    """0 tokens: the slot is released."""
    memory = PageMemory(SlotCapacity(slots, 9 * kv_slots.PAGE_TOKENS, 0, pages))
    pages_of_slot: dict[int, list[int]] = {slot: [] for slot in range(slots)}
    for slot, wanted in changes:
        slot %= slots
        if wanted == 0:
            memory.release(slot)
            pages_of_slot[slot] = []
            continue
        missing = max(0, wanted - len(pages_of_slot[slot]))
        has_grown = memory.grow(slot, wanted * kv_slots.PAGE_TOKENS)
        assert has_grown == (missing <= pages - sum(map(len, pages_of_slot.values())))
        if has_grown:
            held = memory.table[slot, : memory.num_held(slot)].tolist()
            assert held[: len(pages_of_slot[slot])] == pages_of_slot[slot]
            assert len(held) == len(pages_of_slot[slot]) + missing
            pages_of_slot[slot] = held
        in_use = [page for held in pages_of_slot.values() for page in held]
        assert len(set(in_use)) == len(in_use) == pages - memory.num_free
        assert set(in_use) <= set(range(pages))


def test_the_table_is_copied_only_when_it_has_changed() -> None:
    capacity = SlotCapacity(3, 4 * kv_slots.PAGE_TOKENS, 64, pages=5)
    slots, pages = kv_slots.DecodeSlots(endless_policy().decoder, capacity), PageMemory(capacity)
    assert slots.page_table is not None
    assert slots.page_table.tolist() == 4 * [[5, 5, 5, 5]]  # all entries are the spare page
    pages.grow(1, 130)
    slots.set_page_table(pages)
    held = slots.page_table[1, :2].tolist()
    slots.page_table[0, 0] = -1
    pages.grow(1, 256)  # two pages hold as many
    pages.release(1)
    slots.set_page_table(pages)
    assert slots.page_table[0, 0] == -1
    pages.grow(2, 1)
    slots.set_page_table(pages)
    assert slots.page_table[0, 0] == 5
    assert slots.page_table[2, 0] in held


def test_attention_by_pages_is_that_without() -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    q, k, v = random(3, 4, 8), random(3, 2, 8), random(3, 2, 8)
    prefix = random(20, 2, 8), random(20, 2, 8)
    pages = random(12, 2, 4, 8), random(12, 2, 4, 8)
    table = torch.randperm(12, generator=generator).int().view(4, 3)
    contiguous = tuple(memory[table.long()].transpose(1, 2).flatten(2, 3) for memory in pages)
    rows, lengths = torch.tensor([3, 0, 2]), torch.tensor([5, 1, 0, 7])
    addresses = SlotAddresses(
        rows, torch.tensor([0, 3, 9, 12]), lengths, lengths[rows] + torch.tensor([4, 0, 11])
    )
    plain = reference_attention(q, k, v, prefix, (contiguous[0], contiguous[1]), addresses)
    paged = reference_attention(q, k, v, prefix, pages, addresses._replace(page_table=table))
    torch.testing.assert_close(paged, plain)
    for memory, expected in zip(pages, contiguous, strict=True):
        assert torch.equal(memory[table.long()].transpose(1, 2).flatten(2, 3), expected)


def test_slots_with_pages_are_kept_while_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = tiny.policy().decoder
    forks = [Fork(0, 5, seed=row, max_new_tokens=4000) for row in range(100)]
    allowed = 200_000 * decoder.kv_bytes_per_token
    monkeypatch.setattr(decode_graphs, "kv_bytes_allowed", lambda decoder, held: allowed)
    capacity = plan_slots(decoder, forks, 5, 5)
    assert capacity == SlotCapacity(128, 4032, 4096, pages=1207)
    graphs = graphs_for(decoder, capacity)
    allowed = 180_000 * decoder.kv_bytes_per_token  # a tenth less is free
    assert plan_slots(decoder, forks, 5, 5) is graphs.slots.capacity
    # Fewer rows would fit at full length; the pages that are there hold them as well.
    few = plan_slots(decoder, forks[:30], 5, 5)
    assert (few.pages, graphs_for(decoder, few) is graphs) == (0, True)
    allowed = 100_000 * decoder.kv_bytes_per_token
    assert plan_slots(decoder, forks, 5, 5).pages < 1207 / 2
