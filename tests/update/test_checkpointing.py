"""Layers computed again in the backward pass: the same gradient, and less kept for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import tiny
import torch

from counterpoise.config import UpdateConfig
from counterpoise.model.scoring import forward
from counterpoise.update.step import StepSettings, accumulate_gradient

CONFIG = UpdateConfig(micro_tokens=60)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_gradients_are_equal(architecture: str) -> None:
    rows, found = tiny.rows(), []
    for checkpointing in (False, True):
        policy = tiny.policy(architecture)
        config = replace(CONFIG, checkpointing=checkpointing)
        result = accumulate_gradient(
            policy, rows, StepSettings(config, temperature=0.8, max_new_tokens=24)
        )
        found.append((result, [p.grad for p in policy.model.parameters()]))
    (plain, gradients), (again, recomputed) = found
    assert plain.loss == again.loss
    for a, b in zip(gradients, recomputed, strict=True):
        assert a is not None
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def kept(work: Callable[[], object]) -> int:
    """Elements that autograd stores for the backward pass, parameters and views counted once."""
    seen: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        alive = work()
    del alive
    return sum(seen.values())


def test_only_the_inputs_of_layers_are_kept() -> None:
    rows = tiny.rows(groups=4, shortest=15)
    policy = tiny.policy(num_hidden_layers=6)
    for parameter in policy.model.parameters():
        parameter.requires_grad_(True)
    whole = kept(lambda: forward(policy, rows, 1.0))
    less = kept(lambda: forward(policy, rows, 1.0, checkpointing=True))
    assert less < whole / 2
