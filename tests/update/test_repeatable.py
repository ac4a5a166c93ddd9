"""Equal steps on a GPU give equal weights when asked to, and the switch is put back."""

from __future__ import annotations

import pytest
import tiny
import torch

from counterpoise.config import ModelConfig, UpdateConfig
from counterpoise.model.load import load_policy
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.repeatable import repeatable
from counterpoise.update.step import StepSettings, take_step


@pytest.mark.parametrize("wanted", [True, False])
def test_the_switch_is_put_back(wanted: bool) -> None:
    with repeatable(wanted):
        there = wanted and torch.cuda.is_available()
        assert torch.are_deterministic_algorithms_enabled() == there
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_caller_that_is_only_warned_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with repeatable():
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_equal_steps_give_equal_weights() -> None:
    found = []
    for _ in range(2):
        policy = load_policy(ModelConfig(device="cuda", dtype="bfloat16"))
        config = UpdateConfig(lr=1e-3, repeatable=True)
        optimizer = Optimizer(policy.model, config)
        for seed in range(3):
            rows = tiny.rows(groups=8, size=8, seed=seed, longest=90)
            take_step(
                policy, optimizer, rows, StepSettings(config, temperature=1.0, max_new_tokens=90)
            )
        found.append(torch.cat([master.flatten() for master in optimizer.masters]))
    assert torch.equal(*found)
