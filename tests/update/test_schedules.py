"""The learning rate of every step, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from counterpoise.config import UpdateConfig
from counterpoise.config.load import config_from_tables
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.schedules import learning_rate_factor


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1, 1, 1, 1, 1, 1]),
        ({"schedule": "linear"}, [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ({"schedule": "linear", "final_lr_share": 0.4}, [1, 0.9, 0.8, 0.7, 0.6, 0.5]),
        ({"schedule": "linear", "warmup_steps": 2}, [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ({"schedule": "cosine"}, [(1 + math.cos(math.pi * k / 6)) / 2 for k in range(6)]),
        (
            {"schedule": "cosine", "warmup_steps": 3, "final_lr_share": 0.1},
            [1 / 3, 2 / 3, 1, 1, 0.1 + 0.9 * 0.75, 0.1 + 0.9 * 0.25],
        ),
        ({"schedule": "cosine", "warmup_steps": 8}, [k / 8 for k in range(1, 7)]),
    ],
)
def test_rates(options: dict, expected: list[float]) -> None:
    config = UpdateConfig(**options)
    assert [learning_rate_factor(config, k, 6) for k in range(6)] == pytest.approx(expected)


def test_beyond_the_last_step_the_rate_stays() -> None:
    config = UpdateConfig(schedule="cosine", final_lr_share=0.2)
    assert learning_rate_factor(config, 99, 6) == pytest.approx(0.2)
    assert learning_rate_factor(config, 99, 0) == 1.0  # a step outside of a run


def test_cosine_is_verls_and_torchs() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    inner = torch.optim.SGD([parameter], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(inner, T_max=6, eta_min=0.2)
    config = UpdateConfig(schedule="cosine", final_lr_share=0.2)
    for k in range(6):
        assert learning_rate_factor(config, k, 6) == pytest.approx(theirs.get_last_lr()[0])
        inner.step()
        theirs.step()


def test_the_optimizer_follows_it() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    config = UpdateConfig(optimizer="sgd", lr=0.1, schedule="linear", max_grad_norm=0.0)
    optimizer = Optimizer(model, config, total_steps=4)
    moved = []
    for _ in range(4):
        before = model.weight.item()
        model.weight.grad = torch.ones(1, 1)
        optimizer.step(1.0)
        moved.append(before - model.weight.item())
    assert moved == pytest.approx([0.1, 0.075, 0.05, 0.025], abs=1e-7)


@pytest.mark.parametrize(
    ("sets", "steps"),
    [
        (["batch.steps=4"], 40),
        (["batch.steps=4", "batch.rows_per_step=8"], 160),  # 128 rows of an iteration
        (["batch.rows_per_step=1"], 160),  # no more than its 16 groups
        (["batch.rows_per_step=500"], 10),
        (["batch.rows_per_step=8", "balance.tau=0.25", "balance.target=32"], 40),
    ],
)
def test_a_run_has_as_many_steps_as_its_batches_can_fill(sets: list[str], steps: int) -> None:
    sizes = ["loop.iterations=10", "sample.prompts=16", "sample.group_size=8", "balance.tau=0"]
    config = config_from_tables({}, [*sizes, *sets])
    assert config.max_optimizer_steps == steps
