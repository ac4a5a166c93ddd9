"""Floors by hand, FLOP against torch's own counter, pairs against a loop over all of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import tiny
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from counterpoise.lab.speed.floors import (
    DeviceRates,
    ModelSizes,
    WorkCost,
    decode_cost,
    measure_rates,
    prefill_cost,
    sampling_floor,
    sizes_of,
    update_cost,
    update_floor,
)
from counterpoise.lab.speed.workload import group_lengths
from counterpoise.model.load import wrap_model
from counterpoise.model.shapes import shape_config

HAND = ModelSizes(
    weights=1000, body=700, head=200, layers=2, heads=4, kv_heads=2, head_dim=8, weight_bytes=2
)
PAIR = 2 * 4 * 8  # L H d


def test_smollm2s_sizes_are_the_published_ones() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape_config("shape:smollm2-135m"))
    found = sizes_of(wrap_model("smollm2", model, tiny.Words()))
    assert (found.weights, found.body, found.head) == (134_515_008, 106_168_320, 28_311_552)
    assert found.read_weights == found.weights  # tied: the unembedding reads them


def test_sizes_are_read_from_the_model() -> None:
    found = sizes_of(tiny.policy("llama"))
    body = 2 * (48 * 48 * 2 + 48 * 24 * 2 + 3 * 48 * 80)
    assert (found.body, found.head) == (body, tiny.VOCABULARY * 48)
    assert found.weights == body + 2 * found.head + 5 * 48  # an embedding of its own, five norms
    assert found.read_weights == found.weights - found.head  # a token reads one row of it
    assert found.cache_bytes_per_token == 2 * 2 * 2 * 12 * 4


def test_decoding_reads_weights_and_cache_once() -> None:
    cost = decode_cost(HAND, [3, 5], copies=4, tokens_so_far=6)
    assert HAND.cache_bytes_per_token == 2 * 2 * 2 * 8 * 2
    assert cost.bytes == 2 * 1000 + HAND.cache_bytes_per_token * (3 + 5 + 8 * 6)
    assert cost.flop == 2 * 900 * 8 + 4 * PAIR * (4 * (3 + 5) + 8 * 6)


def test_an_embedding_of_its_own_is_not_read() -> None:
    untied = replace(HAND, lookup=200)
    for cost in (partial(decode_cost, copies=4, tokens_so_far=6), prefill_cost):
        assert cost(HAND, [3, 5]).bytes - cost(untied, [3, 5]).bytes == 2 * 200


def test_prefill_computes_every_prompt_once() -> None:
    cost = prefill_cost(HAND, [3, 5])
    assert cost.flop == 2 * (700 * 8 + 200 * 2) + 4 * PAIR * (6 + 15)


def test_the_sampling_floor_is_the_larger_unit_token_by_token() -> None:
    rates = DeviceRates(copy=1e3, matrix=1e4, dtype="bfloat16")
    slow = prefill_cost(HAND, [3, 5]).seconds(rates)
    for drawn in (1, 2, 3):
        cost = decode_cost(HAND, [3, 5], 4, drawn)
        slow += max(cost.bytes / 1e3, cost.flop / 1e4)
    assert sampling_floor(HAND, [3, 5], 4, 4, rates) == pytest.approx(slow)


def test_update_counts_each_pair_that_may_look() -> None:
    """A loop over queries and keys: prompts once, responses without their last token."""
    groups = [(3, [4, 2, 1]), (1, [5])]
    pairs = tokens = 0
    for S, responses in groups:
        tokens += S
        pairs += sum(1 for q in range(S) for k in range(S) if k <= q)
        for T in responses:
            kept = T - 1
            tokens += kept
            pairs += sum(S + sum(1 for k in range(kept) if k <= q) for q in range(kept))
    cost, passed = update_cost(HAND, groups)
    assert passed == tokens
    assert cost.flop == 6 * (700 * tokens + 200 * (4 + 2 + 1 + 5)) + 12 * PAIR * pairs
    assert cost.bytes == 28 * 1000
    rates = DeviceRates(copy=1e3, matrix=1e4, dtype="bfloat16")
    assert update_floor(cost, rates) == pytest.approx(cost.flop / 1e4 + 28.0)


def test_update_flop_are_those_torch_counts() -> None:
    """One row through transformers' forward and backward: matrix products outside attention."""
    policy = tiny.policy("qwen3", tie_word_embeddings=True)
    policy.model.requires_grad_(True)
    tokens = torch.randint(2, tiny.VOCABULARY, (1, 11))
    with FlopCounterMode(display=False) as counter:
        policy.model(input_ids=tokens, logits_to_keep=7, use_cache=False).logits.sum().backward()
    counts = counter.get_flop_counts()["Global"]
    products = sum(n for op, n in counts.items() if op in (torch.ops.aten.mm, torch.ops.aten.addmm))
    sizes = sizes_of(policy)
    assert products == 6 * (sizes.body * 11 + sizes.head * 7)


def test_the_arithmetic_of_the_page() -> None:
    """docs/results/speed.md, for 64 prompts of 90 tokens and 512 responses of 128."""
    smollm2 = ModelSizes(134_515_008, 106_168_320, 28_311_552, 30, 9, 3, 64, 2)
    decode = decode_cost(smollm2, [90] * 64, 8, 64)
    assert (decode.bytes / 1e9, decode.flop / 1e9) == pytest.approx((1.16, 143), rel=0.01)
    cost, passed = update_cost(smollm2, [(90, [128] * 8)] * 64)
    assert passed == 70_784
    assert (cost.flop / 1e12, cost.bytes / 1e9) == pytest.approx((58.3, 3.77), rel=0.01)


def test_lengths_of_rows_are_by_group() -> None:
    rows = tiny.rows(groups=3, size=4)
    found = group_lengths(rows)
    assert [len(responses) for _, responses in found] == [4, 4, 4]
    assert sum(map(sum, (responses for _, responses in found))) == sum(r.num_tokens for r in rows)


def test_the_larger_unit_is_the_floor() -> None:
    rates = DeviceRates(copy=10.0, matrix=100.0, dtype="float32")
    assert WorkCost(bytes=20, flop=100).seconds(rates) == 2.0
    assert WorkCost(bytes=20, flop=500).seconds(rates) == 5.0


def test_rates_are_measured() -> None:
    rates = measure_rates(torch.device("cpu"), torch.float32)
    assert rates.copy > 1e8
    assert rates.matrix > 1e8
    assert rates.dtype == "float32"
