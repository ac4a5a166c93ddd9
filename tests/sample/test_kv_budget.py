"""Responses that no memory could hold are refused before the run, with the number that fits."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch

from counterpoise.config import SampleConfig
from counterpoise.errors import PoiseError
from counterpoise.model import memory_share
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


def test_a_run_that_has_a_share_of_a_gpu_plans_with_that_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    total, reserved, allocated = 100 * 10**9, 10 * 10**9, 4 * 10**9
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * 10**9, total))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocated)
    decoder = SimpleNamespace(device=torch.device("cuda"))
    # All of the device: 60 GB are free, and 6 GB of what torch has reserved are not in use.
    assert kv_budget.kv_bytes_allowed(decoder, 0) == 33 * 10**9
    assert kv_budget.total_memory(torch.device("cuda")) == total
    # A quarter: 25 GB without 0.7 GB for the CUDA context, of which 10 GB are reserved already.
    monkeypatch.setenv("POISE_MEMORY_SHARE", "0.25")
    assert kv_budget.kv_bytes_allowed(decoder, 0) == (24.3 - 10 + 6) / 2 * 10**9
    assert kv_budget.total_memory(torch.device("cuda")) == 24.3 * 10**9
    # Where others left less than the share, what is free counts.
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * 10**9, total))
    assert kv_budget.kv_bytes_allowed(decoder, 0) == 4 * 10**9


def test_a_refusal_names_the_share_of_a_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, config = tiny.policy(), SampleConfig(max_new_tokens=10**9)
    monkeypatch.setenv("POISE_MEMORY_SHARE", "0.5")
    with pytest.raises(PoiseError, match=r"^sample\.max_new_tokens=.* half of the memory is"):
        kv_budget.check_cache_fits(policy, PROMPTS, config)
    monkeypatch.setattr(Policy, "device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**10, 10**10))
    # An experiment tries a run again that ended with these words.
    with pytest.raises(PoiseError, match=r"^out of memory: sample.* a share of 0\.5 of the memory"):
        kv_budget.check_cache_fits(policy, PROMPTS, config)


def test_the_allocator_gets_the_share_as_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (70 * 10**9, 70 * 10**9))

    def set_limit(share: float, device: object) -> None:
        assert device == 3  # torch refuses a device without an index
        limits.append(share)

    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", set_limit)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    memory_share.apply_memory_share(torch.device("cuda"))
    monkeypatch.setenv("POISE_MEMORY_SHARE", "0.5")
    memory_share.apply_memory_share(torch.device("cpu"))
    assert limits == []
    memory_share.apply_memory_share(torch.device("cuda"))
    assert limits == [pytest.approx(0.49)]
    memory_share.apply_memory_share(torch.device("cuda", 3))
    assert len(limits) == 2
    monkeypatch.setenv("POISE_MEMORY_SHARE", "0.01")
    with pytest.raises(PoiseError, match=r"^out of memory: a share of 0\.01 of 70\.0 GB leaves"):
        memory_share.apply_memory_share(torch.device("cuda"))
    for wrong in ("0", "1.5", "half", "-1", "nan"):
        monkeypatch.setenv("POISE_MEMORY_SHARE", wrong)
        with pytest.raises(PoiseError, match="POISE_MEMORY_SHARE="):
            memory_share.memory_share()
