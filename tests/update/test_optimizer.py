"""The optimizer: closed-form steps, masters for half precision, a state to be put away."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from counterpoise.config import UpdateConfig
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import StepSettings, accumulate_gradient


class Weights(nn.Module):
    """Two parameters of a given type; enough of a model for an optimizer."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=dtype))
        self.b = nn.Parameter(torch.full((2, 2), 3.0, dtype=dtype))


def push(model: Weights, a: list[float], b: float = 0.0) -> None:
    model.a.grad = torch.tensor(a, dtype=model.a.dtype, device=model.a.device)
    model.b.grad = torch.full_like(model.b, b)


def advance(model: Weights, optimizer: Optimizer, a: list[float], b: float = 0.0) -> float:
    optimizer.zero_grad()
    push(model, a, b)
    norm = optimizer.grad_norm()
    optimizer.step(norm)
    return norm


def plain(**changes: object) -> UpdateConfig:
    return UpdateConfig(**{"optimizer": "sgd", "lr": 0.1, "max_grad_norm": 0.0, **changes})


def test_sgd_is_a_step_down_the_gradient() -> None:
    model = Weights()
    optimizer = Optimizer(model, plain())
    assert advance(model, optimizer, [3.0, 0.0, 0.0], b=2.0) == pytest.approx(5.0)
    assert model.a.tolist() == pytest.approx([0.7, -2.0, 0.5])
    assert model.b.flatten().tolist() == pytest.approx([2.8] * 4)
    advance(model, optimizer, [0.0, 0.0, 0.0])  # no momentum
    assert model.a.tolist() == pytest.approx([0.7, -2.0, 0.5])


@pytest.mark.parametrize(
    ("limit", "scale"),
    [(1.0, 1 / (5 + 1e-6)), (5.1, 1.0), (0.0, 1.0), (2.5, 2.5 / (5 + 1e-6))],
)
def test_gradients_are_scaled_down_never_up(limit: float, scale: float) -> None:
    model = Weights()
    optimizer = Optimizer(model, plain(max_grad_norm=limit))
    norm = advance(model, optimizer, [3.0, 0.0, 0.0], b=2.0)
    assert norm == pytest.approx(5.0)  # as it was before
    assert model.a[0].item() == pytest.approx(1 - 0.1 * 3 * scale, abs=1e-6)
    assert model.b[0, 0].item() == pytest.approx(3 - 0.1 * 2 * scale, abs=1e-6)


def test_adamw_by_hand() -> None:
    """Two steps with different gradients: moments, bias correction and decoupled decay."""
    lr, beta2, decay = 0.01, 0.95, 0.1
    model = Weights()
    optimizer = Optimizer(
        model, UpdateConfig(lr=lr, beta2=beta2, weight_decay=decay, max_grad_norm=0.0)
    )
    x, m, v = 1.0, 0.0, 0.0
    for t, g in enumerate((0.5, -0.2), start=1):
        advance(model, optimizer, [g, 0.0, 0.0])
        m, v = 0.9 * m + 0.1 * g, beta2 * v + (1 - beta2) * g * g
        x -= lr * decay * x
        x -= lr * (m / (1 - 0.9**t)) / (math.sqrt(v / (1 - beta2**t)) + 1e-8)
        assert model.a[0].item() == pytest.approx(x, rel=1e-6)


def test_the_learning_rate_rises_linearly_and_stays() -> None:
    model = Weights()
    optimizer = Optimizer(model, plain(warmup_steps=4))
    before, moved = 1.0, []
    for _ in range(6):
        advance(model, optimizer, [1.0, 0.0, 0.0])
        moved.append(before - model.a[0].item())
        before = model.a[0].item()
    assert moved == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1], abs=1e-6)
    assert optimizer.steps == 6


def test_bfloat16_weights_are_trained_through_masters() -> None:
    """Steps of 1e-4 from 1.0 are below bfloat16's resolution (1/256) and must still add up."""
    model = Weights(torch.bfloat16)
    optimizer = Optimizer(model, plain(lr=1e-4))
    for step in range(1, 101):
        advance(model, optimizer, [1.0, 0.0, 0.0])
        master = optimizer.masters[0]
        assert master.dtype == torch.float32
        assert master[0].item() == pytest.approx(1 - 1e-4 * step, abs=1e-5)
        assert model.a.dtype == torch.bfloat16
        assert torch.equal(model.a, master.to(torch.bfloat16))
    assert model.a[0].item() < 1.0


def test_float32_weights_are_their_own_masters() -> None:
    model = Weights()
    optimizer = Optimizer(model, UpdateConfig())
    assert all(w is m for w, m in zip(optimizer.weights, optimizer.masters, strict=True))


def test_a_weight_without_gradient_stays() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model = Weights(dtype)
        optimizer = Optimizer(model, plain())
        advance(model, optimizer, [1.0, 1.0, 1.0], b=1.0)
        before = model.b.clone()
        optimizer.zero_grad()
        model.a.grad = torch.ones_like(model.a)
        optimizer.step(optimizer.grad_norm())
        assert torch.equal(model.b, before)


def test_frozen_weights_are_left_out() -> None:
    model = Weights()
    model.b.requires_grad_(False)
    assert len(Optimizer(model, UpdateConfig()).weights) == 1


def test_the_norm_tells_what_is_not_finite() -> None:
    model = Weights()
    optimizer = Optimizer(model, plain())
    assert optimizer.grad_norm() == 0.0
    for bad in (math.nan, math.inf, -math.inf):
        push(model, [1.0, bad, 0.0])
        assert not math.isfinite(optimizer.grad_norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_restored_optimizer_takes_the_same_next_steps(
    tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    config = UpdateConfig(optimizer=name, lr=0.01, warmup_steps=5, weight_decay=0.1)
    model = Weights(dtype)
    optimizer = Optimizer(model, config)
    for k in range(3):
        advance(model, optimizer, [0.1 * k, -1.0, 0.3], b=0.7)
    save_file(optimizer.state(), tmp_path / "optimizer.safetensors")

    twin = copy.deepcopy(model)
    restored = Optimizer(twin, config)
    restored.restore(load_file(tmp_path / "optimizer.safetensors"))
    assert restored.steps == 3
    for k in range(3):
        advance(model, optimizer, [0.2, 0.5 * k, -0.1], b=-0.3)
        advance(twin, restored, [0.2, 0.5 * k, -0.1], b=-0.3)
        assert torch.equal(model.a, twin.a)
        assert torch.equal(model.b, twin.b)
        for mine, theirs in zip(optimizer.masters, restored.masters, strict=True):
            assert torch.equal(mine, theirs)
    assert restored.state().keys() == optimizer.state().keys()


def test_a_state_before_the_first_step(tmp_path: Path) -> None:
    model = Weights()
    state = Optimizer(model, UpdateConfig()).state()
    assert {name: value.tolist() for name, value in state.items()} == {"steps": 0}
    fresh = Optimizer(model, UpdateConfig())
    fresh.restore(state)
    assert fresh.steps == 0


def test_a_restored_state_is_a_copy() -> None:
    model = Weights()
    optimizer = Optimizer(model, UpdateConfig(lr=0.1))
    advance(model, optimizer, [1.0, 1.0, 1.0])
    state = {name: value.clone() for name, value in optimizer.state().items()}
    kept = {name: value.clone() for name, value in state.items()}
    twin = Weights()
    restored = Optimizer(twin, UpdateConfig(lr=0.1))
    restored.restore(state)
    advance(twin, restored, [5.0, 5.0, 5.0])
    assert all(torch.equal(state[name], kept[name]) for name in state)


# -- passes that add up ---------------------------------------------------------------------------


def test_gradients_of_half_precision_add_up_in_float32() -> None:
    """1 and 255 times 1/512: in bfloat16 every single addition would be rounded away."""
    model = Weights(torch.bfloat16)
    optimizer = Optimizer(model, plain())
    optimizer.zero_grad()
    push(model, [1.0, 0.0, 0.0])
    optimizer.collect_gradients()
    assert all(p.grad is None for p in model.parameters())
    for _ in range(255):
        push(model, [1 / 512, 0.0, 0.0])
        optimizer.collect_gradients()
    assert optimizer.masters[0].grad is not None
    assert optimizer.masters[0].grad[0].item() == 1 + 255 / 512
    assert optimizer.grad_norm() == pytest.approx(1 + 255 / 512)
    optimizer.step(optimizer.grad_norm())
    assert optimizer.masters[0][0].item() == pytest.approx(1 - 0.1 * (1 + 255 / 512))
    optimizer.zero_grad()
    assert all(m.grad is None for m in optimizer.masters)
    assert optimizer.grad_norm() == 0.0


def test_collecting_or_not_is_the_same_for_one_pass() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        ends = []
        for collect in (False, True):
            model = Weights(dtype)
            optimizer = Optimizer(model, UpdateConfig(lr=0.01))
            push(model, [0.3, -0.7, 0.1], b=0.2)
            if collect:
                optimizer.collect_gradients()
            optimizer.step(optimizer.grad_norm())
            ends.append((model.a, model.b))
        assert torch.equal(ends[0][0], ends[1][0])
        assert torch.equal(ends[0][1], ends[1][1])


def test_the_sum_over_many_passes_is_no_worse_than_one() -> None:
    """A bfloat16 model cut into single rows, against the same weights in float32."""
    half, full = tiny.policy("llama"), tiny.policy("llama")
    half.model.to(torch.bfloat16)
    for p, q in zip(full.model.parameters(), half.model.parameters(), strict=True):
        p.data.copy_(q.data)
    rows = tiny.rows(groups=1, size=6, off_policy=0.0)
    found = {}
    for name, policy, size in (("full", full, 10_000), ("one", half, 10_000), ("many", half, 1)):
        config = UpdateConfig(surrogate="reinforce", micro_tokens=size)
        optimizer = Optimizer(policy.model, config)
        accumulate_gradient(
            policy,
            rows,
            StepSettings(config, temperature=1.0, max_new_tokens=17),
            after_pass=optimizer.collect_gradients,
        )
        found[name] = torch.cat([m.grad.flatten() for m in optimizer.masters if m.grad is not None])
        optimizer.zero_grad()
    error = {name: (found[name] - found["full"]).norm() for name in ("one", "many")}
    assert error["many"] < 1.3 * error["one"]
    assert error["one"] < 0.1 * found["full"].norm()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_takes_the_steps_of_the_cpu(dtype: torch.dtype) -> None:
    """One fused kernel there, a loop here; a state goes from one to the other and back."""
    config = UpdateConfig(lr=0.01, weight_decay=0.1)
    here, there = Weights(dtype), Weights(dtype).cuda()
    mine, theirs = Optimizer(here, config), Optimizer(there, config)
    assert theirs.fused
    for k in range(6):
        for model, optimizer in ((here, mine), (there, theirs)):
            push(model, [0.1 * k, -1.0, 0.3], b=0.7)
            optimizer.step(optimizer.grad_norm())
            optimizer.zero_grad()
        for a, b in zip(mine.masters, theirs.masters, strict=True):
            torch.testing.assert_close(a, b.cpu(), rtol=1e-6, atol=1e-7)
        assert mine.state().keys() == theirs.state().keys()
        if k == 2:
            theirs.restore(mine.state())
            mine.restore({name: value.cpu() for name, value in theirs.state().items()})


def test_double_precision_stays_double() -> None:
    model = Weights(torch.float64)
    optimizer = Optimizer(model, plain(lr=1e-12))
    advance(model, optimizer, [1.0, 0.0, -2.0])
    assert model.a.tolist() == [1.0 - 1e-12, -2.0, 0.5 + 2e-12]
