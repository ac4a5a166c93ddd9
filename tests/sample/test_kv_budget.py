"""Responses that no memory could hold are refused before the run, with the number that fits."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch

from counterpoise.config import SampleConfig
from counterpoise.errors import PoiseError
from counterpoise.model.load import Policy
from counterpoise.sample import kv_budget
from counterpoise.sample.kv_slots import SlotCapacity
from counterpoise.types import Prompt

PROMPTS = [(Prompt("a", "1", "1"), np.arange(10, dtype=np.int32))]


def test_max_new_tokens_beyond_the_memory_is_one_line_with_the_arithmetic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = tiny.policy()
    # 2 layers * (key and value) * 2 heads * 16 numbers * 4 bytes, and 16 of the sample itself
    assert policy.decoder.kv_bytes_per_token == 512
    monkeypatch.setattr(kv_budget, "total_memory", lambda device: 2 * 528 * 110)
    # The rows of a group need not fit together: they wait for each other.
    kv_budget.check_cache_fits(policy, PROMPTS, SampleConfig(group_size=400, max_new_tokens=100))
    with pytest.raises(PoiseError, match=r"max_new_tokens=101: .*at most 100 fit"):
        kv_budget.check_cache_fits(policy, PROMPTS, SampleConfig(max_new_tokens=101))
    monkeypatch.setattr(kv_budget, "total_memory", lambda device: 2 * 528 * 10)
    with pytest.raises(PoiseError, match=r"lower sample\.max_prompt_tokens too"):
        kv_budget.check_cache_fits(policy, PROMPTS, SampleConfig(max_new_tokens=1))


def test_a_gpu_needs_the_pages_of_one_row_and_the_spare_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = tiny.policy()
    # A prompt of 10 tokens, two pages, and 1,000 tokens with two slots for their samples.
    needed_bytes = 10 * 528 + 2 * 128 * 512 + 1000 * (512 + 2 * 16)
    capacity = SlotCapacity(1, 1000, 10, pages=8)
    assert capacity.num_bytes(512) <= needed_bytes
    monkeypatch.setattr(Policy, "device", torch.device("cuda"))
    monkeypatch.setattr(kv_budget, "total_memory", lambda device: 2 * needed_bytes)
    kv_budget.check_cache_fits(policy, PROMPTS, SampleConfig(max_new_tokens=1000))
    with pytest.raises(PoiseError, match=r"max_new_tokens=1001: .*at most 1,000 fit"):
        kv_budget.check_cache_fits(policy, PROMPTS, SampleConfig(max_new_tokens=1001))


def test_a_billion_tokens_are_refused_on_this_machine() -> None:
    with pytest.raises(PoiseError, match=r"max_new_tokens=1000000000: the keys and values of one"):
        kv_budget.check_cache_fits(
            tiny.policy(), PROMPTS, SampleConfig(group_size=8, max_new_tokens=10**9)
        )
