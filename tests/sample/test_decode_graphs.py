"""The way rows decode on a GPU, run on the CPU: the same books, the same tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

from counterpoise.config import SampleConfig
from counterpoise.model.load import Policy
from counterpoise.sample import decode_graphs, decode_slots, kv_budget
from counterpoise.sample.decode_cached import decode_queue
from counterpoise.sample.decode_graphs import (
    batch_size,
    graphs_for,
    kv_bytes_held,
    release_graphs,
)
from counterpoise.sample.decode_slots import decode_in_slots
from counterpoise.sample.fork_queue import DecodedRows, ForkQueue
from counterpoise.sample.kv_budget import plan_cache
from counterpoise.sample.kv_cache import Fork, KVCache
from counterpoise.sample.kv_slots import DecodeSlots, SlotCapacity

CONFIG = SampleConfig(temperature=0.8)


def forks(seed: int = 0, rows: int = 11) -> tuple[list[np.ndarray], list[Fork]]:
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(2, tiny.VOCABULARY, n).astype(np.int32) for n in (3, 9, 1, 6)]
    made = []
    for r in range(rows):
        s = int(rng.integers(len(sequences)))
        length = int(rng.integers(1, len(sequences[s]) + 1))
        made.append(Fork(s, length, seed=100 + r, max_new_tokens=int(rng.integers(1, 25))))
    return sequences, made


def both(
    policy: Policy, sequences: list[np.ndarray], rows: list[Fork], config: SampleConfig
) -> tuple[DecodedRows, DecodedRows]:
    """The rows by the cache of the CPU and by slots."""
    decoder = policy.decoder
    decoder.reserve(64)
    with torch.no_grad():
        plan = plan_cache(decoder, rows)
        cache = KVCache(decoder, plan.rows, plan.longest_prefix, plan.columns)
        cached = decode_queue(policy, cache, ForkQueue(decoder, sequences, rows), config)
        slotted = decode_in_slots(policy, ForkQueue(decoder, sequences, rows), config)
    return cached.decoded, slotted


def same(cached: DecodedRows, slotted: DecodedRows) -> None:
    assert sorted(cached) == sorted(slotted)
    for index, (tokens, logprobs) in cached.items():
        np.testing.assert_array_equal(tokens, slotted[index][0])
        np.testing.assert_allclose(logprobs, slotted[index][1], atol=2e-5)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("look", [1, 3, 16])
def test_slots_draw_what_the_cache_draws(
    architecture: str, look: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_slots, "FINISH_CHECK_INTERVAL", look)
    policy = tiny.policy(architecture)
    sequences, rows = forks()
    same(*both(policy, sequences, rows, CONFIG))


@pytest.mark.parametrize(("top_p", "top_k"), [(0.8, 0), (1.0, 5), (0.7, 9)])
def test_so_with_a_cut_distribution(top_p: float, top_k: int) -> None:
    policy = tiny.policy()
    sequences, rows = forks(1)
    config = SampleConfig(temperature=0.6, top_p=top_p, top_k=top_k)
    same(*both(policy, sequences, rows, config))


def test_rows_leave_and_the_batch_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many end tokens: most rows are gone after a look, and the rest go on unharmed."""
    monkeypatch.setattr(decode_slots, "FINISH_CHECK_INTERVAL", 1)
    policy = replace(tiny.policy(), end_tokens=tuple(range(1, 20)))
    sequences, rows = forks(2, rows=40)
    rows = [replace(row, max_new_tokens=24) for row in rows]
    sizes: list[int] = []
    step = decode_graphs.DecodeGraphs.step

    def noted(self, decoder, batch, how):
        sizes.append(batch)
        step(self, decoder, batch, how)

    monkeypatch.setattr(decode_graphs.DecodeGraphs, "step", noted)
    same(*both(policy, sequences, rows, CONFIG))
    assert sizes[0] > 24
    assert sizes[-1] < 16
    assert sizes == sorted(sizes, reverse=True)


def test_memory_that_nobody_wrote_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch fills uninitialised memory with NaN here: one read of it would show."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        test_rows_leave_and_the_batch_shrinks(monkeypatch)
    finally:
        torch.use_deterministic_algorithms(False)


def test_nothing_is_left_of_the_rows_before() -> None:
    """Slots are used again: a second call draws what a first one would."""
    policy = tiny.policy()
    sequences, rows = forks(3, rows=30)
    both(policy, sequences, rows, CONFIG)
    fewer = rows[5:14]
    same(*both(policy, sequences, fewer, CONFIG))


def test_capacity_grows_and_weights_that_moved_are_noticed() -> None:
    policy = tiny.policy()
    decoder = policy.decoder
    small = graphs_for(decoder, SlotCapacity(8, 64, 4096))
    assert graphs_for(decoder, SlotCapacity(5, 64, 4096)) is small
    large = graphs_for(decoder, SlotCapacity(12, 128, 4096))
    assert kv_bytes_held(decoder) == 2 * 2 * 2 * 16 * 4 * (13 * 128 + 4096) + 16 * 13 * 128
    assert large is not small
    assert large.slots.capacity == SlotCapacity(12, 128, 4096)
    decoder.reserve(10_000)  # a longer rotary table lies elsewhere
    moved = graphs_for(decoder, SlotCapacity(1, 1, 1))
    assert moved is not large
    next(policy.model.parameters()).data = next(policy.model.parameters()).data.clone()
    assert graphs_for(decoder, SlotCapacity(1, 1, 1)) is not moved
    release_graphs(decoder)
    release_graphs(decoder)  # nothing to give back is fine
    assert kv_bytes_held(decoder) == 0


def test_few_long_rows_after_many_short_ones_take_no_more_than_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = tiny.policy()
    decoder, many, long = policy.decoder, SlotCapacity(64, 64, 4096), SlotCapacity(8, 512, 4096)
    both = many.with_room_for(long)
    assert (many.total_tokens, long.total_tokens, both.total_tokens) == (8256, 8704, 37376)
    both_bytes = both.num_bytes(decoder.kv_bytes_per_token)
    monkeypatch.setattr(kv_budget, "CPU_CACHE_BYTES", both_bytes - 1)
    graphs_for(decoder, many)
    assert graphs_for(decoder, long).slots.capacity == long
    assert graphs_for(decoder, many).slots.capacity == many
    monkeypatch.setattr(kv_budget, "CPU_CACHE_BYTES", both_bytes)
    assert graphs_for(decoder, long).slots.capacity == both  # neither is made again from here on
    assert kv_bytes_held(decoder) == tensor_bytes(decode_graphs._GRAPHS[decoder].slots)


def tensor_bytes(slots: DecodeSlots) -> int:
    """Of the keys, the values, and what is stored of the sampled tokens."""
    cached = slots.prefix_keys + slots.prefix_values + slots.response_keys + slots.response_values
    tensors = (*cached, slots.tokens, slots.logprobs, slots.uniforms)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_the_memory_of_shared_pages_is_the_planned_one() -> None:
    policy = tiny.policy()
    capacity = SlotCapacity(24, 1000, 4096, pages=40)
    slots = graphs_for(policy.decoder, capacity).slots
    assert slots.response_keys[0].shape == (41, 2, 128, 16)
    assert tensor_bytes(slots) == 512 * (41 * 128 + 4096) + 16 * 25 * 1000
    assert kv_bytes_held(policy.decoder) == tensor_bytes(slots)
    # 8 pages a row of 1,000 tokens: so many whole rows are served without pages of their own.
    assert capacity.holds(SlotCapacity(5, 1000, 4096))
    assert not capacity.holds(SlotCapacity(6, 1000, 4096))
    assert not capacity.holds(SlotCapacity(24, 1000, 4096, pages=41))
    assert capacity.with_room_for(SlotCapacity(6, 1024, 64)) == replace(
        capacity, new_tokens=1024, pages=48
    )


@pytest.mark.parametrize(
    ("rows", "size"), [(1, 8), (8, 8), (9, 12), (13, 16), (100, 128), (129, 192), (4096, 4096)]
)
def test_batch_sizes(rows: int, size: int) -> None:
    assert batch_size(rows) == size
