"""More rows than the cache holds: a finished row's place is taken at once, and nothing changes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import tiny
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from counterpoise.config import SampleConfig
from counterpoise.model.load import Policy
from counterpoise.sample import decode_slots, fork_queue, kv_budget
from counterpoise.sample.decode_cached import CachedRows, decode_queue
from counterpoise.sample.decode_graphs import (
    BATCH_SIZES,
    DrawSettings,
    fit_capacity,
    graphs_for,
    release_graphs,
)
from counterpoise.sample.decode_slots import SlotDecoding
from counterpoise.sample.fork_queue import DecodedRows, ForkQueue
from counterpoise.sample.kv_budget import plan_cache
from counterpoise.sample.kv_cache import Fork, KVCache
from counterpoise.sample.kv_slots import PrefixMemory, SlotCapacity
from counterpoise.sample.native import decode_forks
from counterpoise.types import Response

ROWS, PLACES, LONG, SHORT = 36, 6, 40, 3


def skewed_forks() -> tuple[list[np.ndarray], list[Fork]]:
    """Prompts of 1 to 30 tokens; one row in six is much longer than the others."""
    rng = np.random.default_rng(0)
    sequences = [
        rng.integers(2, tiny.VOCABULARY, n).astype(np.int32) for n in rng.integers(1, 31, ROWS // 4)
    ]
    limits = [LONG if row % 6 == 0 else SHORT for row in range(ROWS)]
    return sequences, [
        Fork(row // 4, len(sequences[row // 4]), seed=row, max_new_tokens=limits[row])
        for row in range(ROWS)
    ]


def decode_cached(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, places: int, config: SampleConfig
) -> CachedRows:
    sequences, forks = skewed_forks()
    policy.decoder.reserve(256)
    monkeypatch.setattr(kv_budget, "MAX_ROWS_CPU", places)
    plan = plan_cache(policy.decoder, forks)
    assert plan.rows == min(places, ROWS)
    cache = KVCache(policy.decoder, plan.rows, plan.longest_prefix, plan.columns)
    with torch.no_grad():
        return decode_queue(policy, cache, ForkQueue(policy.decoder, sequences, forks), config)


def decode_slotted(
    policy: Policy, config: SampleConfig, capacity: SlotCapacity
) -> tuple[SlotDecoding, DecodedRows]:
    sequences, forks = skewed_forks()
    policy.decoder.reserve(256)
    release_graphs(policy.decoder)
    settings = DrawSettings(config.temperature, config.top_p, config.top_k, policy.end_tokens)
    queue = ForkQueue(policy.decoder, sequences, forks)
    decoding = SlotDecoding(queue, graphs_for(policy.decoder, capacity), settings)
    with torch.no_grad():
        return decoding, decoding.run()


def assert_same(left: DecodedRows, right: DecodedRows) -> None:
    assert sorted(left) == sorted(right) == list(range(ROWS))
    for index, (tokens, logprobs) in left.items():
        np.testing.assert_array_equal(tokens, right[index][0])
        np.testing.assert_allclose(logprobs, right[index][1], atol=2e-5)


@pytest.mark.parametrize("top_p", [1.0, 1e-6])  # sampling at temperature 1, and greedy
def test_a_row_depends_neither_on_its_place_nor_on_its_neighbours(
    top_p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows at once, and 6 at a time in a cache that runs out of columns many times."""
    policy, config = tiny.policy(), SampleConfig(top_p=top_p)
    together = decode_cached(policy, monkeypatch, ROWS, config)
    monkeypatch.setattr(kv_budget, "MIN_SPARE_COLUMNS", 9)
    monkeypatch.setattr(fork_queue, "PASS_TOKENS_CPU", 40)  # prompts are prefilled one or two
    refilled = decode_cached(policy, monkeypatch, PLACES, config)
    assert_same(together.decoded, refilled.decoded)
    # 6 places, 40 tokens of prefixes: prompts come and go as well.
    _, decoded = decode_slotted(policy, config, SlotCapacity(PLACES, 64, 40))
    assert_same(together.decoded, decoded)


@st.composite
def groups_of_forks(draw: st.DrawFn) -> tuple[list[int], list[Fork]]:
    """Lengths of sequences, and forks of them in groups: whole prompts and earlier positions."""
    lengths = draw(st.lists(st.integers(1, 9) | st.integers(20, 40), min_size=2, max_size=6))
    forks = [
        Fork(
            sequence,
            length=draw(st.just(tokens) | st.integers(1, tokens)),
            seed=100 * sequence + row,
            max_new_tokens=draw(st.integers(1, 12)),
            excluded_token=draw(st.none() | st.integers(2, 20)),
        )
        for sequence, tokens in enumerate(lengths)
        for row in range(draw(st.integers(1, 4)))
    ]
    return lengths, forks


@cache
def policy_with_short_responses() -> Policy:
    return replace(tiny.policy(), end_tokens=(1, 5, 17, 23))


SHORT_ROWS = [Fork(row // 4, 3, seed=row, max_new_tokens=12) for row in range(8)]


@settings(max_examples=20, derandomize=True)
@given(groups_of_forks(), st.integers(1, 4), st.integers(0, 6), st.integers(20, 100))
# The columns run out while all rows are short, and a row with a long prompt comes after that.
@example(([3, 3, 40], [*SHORT_ROWS, Fork(2, 40, seed=8, max_new_tokens=12)]), 1, 0, 100)
def test_any_forks_in_a_few_places_sample_what_they_do_with_a_place_each(
    groups: tuple[list[int], list[Fork]], places: int, spare_columns: int, pass_tokens: int
) -> None:
    lengths, forks = groups
    policy, config = policy_with_short_responses(), SampleConfig()
    rng = np.random.default_rng(0)
    sequences = [rng.integers(2, tiny.VOCABULARY, n).astype(np.int32) for n in lengths]
    together = decode_forks(policy, sequences, forks, config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_budget, "MAX_ROWS_CPU", places)
        patch.setattr(kv_budget, "SPARE_COLUMNS_DIVISOR", 1000)
        patch.setattr(kv_budget, "MIN_SPARE_COLUMNS", spare_columns)
        patch.setattr(fork_queue, "PASS_TOKENS_CPU", pass_tokens)
        refilled = decode_forks(policy, sequences, forks, config)
    for expected, response in zip(together, refilled, strict=True):
        assert_same_response(expected, response)


def assert_same_response(left: Response, right: Response) -> None:
    np.testing.assert_array_equal(left.tokens, right.tokens)
    np.testing.assert_allclose(left.logprobs, right.logprobs, atol=2e-5)


def test_passes_are_full_while_rows_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """No end token: every row takes a pass for each token but the first, and few passes more."""
    policy = replace(tiny.policy(), end_tokens=(-1,))
    tokens_needed = ROWS // 6 * (LONG - 1) + 5 * ROWS // 6 * (SHORT - 1)
    refilled = decode_cached(policy, monkeypatch, PLACES, SampleConfig())
    assert sum(len(tokens) for tokens, _ in refilled.decoded.values()) == tokens_needed + ROWS
    assert refilled.row_passes == tokens_needed
    # Six batches of six rows, each as long as its longest row, would take ROWS * (LONG - 1) steps
    # of a row. Slots are looked at after every step here, and at intervals otherwise.
    monkeypatch.setattr(decode_slots, "FINISH_CHECK_INTERVAL", 1)
    slotted, decoded = decode_slotted(policy, SampleConfig(), SlotCapacity(PLACES, 64, 4096))
    assert_same(refilled.decoded, decoded)
    assert tokens_needed <= slotted.row_steps <= tokens_needed + PLACES * LONG
    assert slotted.row_steps < 0.4 * ROWS * (LONG - 1)


def test_rows_that_fit_start_together() -> None:
    """Nothing waits: one prefill, and columns for the longest prefix and limit only."""
    policy = tiny.policy()
    _, forks = skewed_forks()
    plan = plan_cache(policy.decoder, forks)
    assert (plan.rows, plan.columns) == (ROWS, max(fork.length for fork in forks) + LONG)


def test_prefix_memory_is_used_again_when_the_last_row_of_a_prompt_has_ended() -> None:
    memory = PrefixMemory(10)
    assert (memory.allocate(4), memory.allocate(3), memory.allocate(4)) == (0, 4, None)
    for start in (0, 0, 4):
        memory.hold_for_row(start)
    memory.release_row(0)
    assert memory.allocate(4) is None
    memory.release_row(0)
    assert memory.allocate(5) is None  # a gap of 4 and one of 3
    assert (memory.allocate(3), memory.allocate(3)) == (0, 7)


@pytest.mark.parametrize("tokens_allowed", [5_000, 20_000, 100_000, 600_000, 4_000_000, 10_000_000])
@pytest.mark.parametrize(("rows", "prefix"), [(512, 300), (512, 4096), (20_000, 200), (5, 4096)])
@pytest.mark.parametrize("kv_bytes", [64, 114_688])
def test_slots_never_take_more_than_is_allowed(
    rows: int, prefix: int, tokens_allowed: int, kv_bytes: int
) -> None:
    everything = SlotCapacity(rows, 8192, rows // 4 * prefix)
    bytes_allowed = tokens_allowed * kv_bytes
    capacity = fit_capacity(everything, prefix, bytes_allowed, kv_bytes)
    whole_row = SlotCapacity(1, 8192, prefix, pages=64)
    assert capacity.num_bytes(kv_bytes) <= max(bytes_allowed, whole_row.num_bytes(kv_bytes))
    assert capacity.holds(SlotCapacity(1, 8192, prefix))
    assert capacity.rows in BATCH_SIZES or capacity.rows < 8
    if capacity.pages and tokens_allowed >= 600_000:
        assert capacity.num_bytes(kv_bytes) > 0.85 * bytes_allowed
        assert 2 * capacity.rows <= capacity.pages < 64 * capacity.rows


def test_uneven_rows_share_what_would_hold_few_of_full_length() -> None:
    """A quarter of the memory of 512 rows: 80 of full length, or 512 that share pages."""
    everything = SlotCapacity(512, 8192, 6000)
    whole = fit_capacity(everything, 100, 10**12, 114_688)
    assert whole == SlotCapacity(512, 8192, 8192)
    capacity = fit_capacity(everything, 100, 80 * 8192 * 114_688, 114_688)
    assert capacity == SlotCapacity(512, 8192, 8192, pages=4410)
    # Rows of one page each: as many as there are pages.
    short = fit_capacity(SlotCapacity(4096, 100, 8192), 100, 10**9, 10_000)
    assert short == SlotCapacity(512, 128, 8192, pages=512)
