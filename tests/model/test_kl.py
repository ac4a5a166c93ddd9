"""KL over the whole vocabulary: values, gradients, chunks and precision."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from counterpoise.model import head
from counterpoise.model.kl import token_divergences

N, D, V = 7, 5, 13


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden, teacher = (torch.randn(N, D, generator=generator, dtype=dtype) for _ in range(2))
    weight = torch.randn(V, D, generator=generator, dtype=dtype)
    return hidden.requires_grad_(), teacher, weight.requires_grad_()


def literal(hidden: Tensor, teacher: Tensor, weight: Tensor, temperature: float) -> Tensor:
    log_p = torch.log_softmax(hidden @ weight.T / temperature, dim=-1)
    log_q = torch.log_softmax(teacher @ weight.detach().T / temperature, dim=-1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_and_gradients_are_those_of_autograd(temperature: float) -> None:
    hidden, teacher, weight = inputs()
    weights = torch.linspace(-1, 2, N, dtype=torch.float64)
    found = token_divergences(hidden, teacher, weight, temperature)
    expected = literal(hidden, teacher, weight, temperature)
    torch.testing.assert_close(found, expected)
    ours = torch.autograd.grad((weights * found).sum(), (hidden, weight))
    theirs = torch.autograd.grad((weights * expected).sum(), (hidden, weight))
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right)


def test_by_hand() -> None:
    """p = (1/2, 1/2), q = (3/4, 1/4): KL = log 2 - log(3) / 2."""
    weight = torch.eye(2, dtype=torch.float64)
    hidden = torch.zeros(1, 2, dtype=torch.float64)
    teacher = torch.tensor([[math.log(3), 0.0]], dtype=torch.float64)
    assert float(token_divergences(hidden, teacher, weight)) == pytest.approx(
        math.log(2) - math.log(3) / 2
    )


def test_the_teacher_stays_as_it_is() -> None:
    hidden, teacher, weight = inputs()
    teacher.requires_grad_()
    token_divergences(hidden, teacher, weight).sum().backward()
    assert teacher.grad is None


def test_equal_states_are_nowhere_apart() -> None:
    hidden, _, weight = inputs(torch.float32)
    found = token_divergences(hidden, hidden.detach().clone(), weight)
    assert float(found.detach().abs().max()) < 1e-6
    found.sum().backward()
    assert float(hidden.grad.abs().max()) < 1e-6


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    hidden, teacher, weight = inputs()
    whole = token_divergences(hidden, teacher, weight, 0.7)
    expected = torch.autograd.grad(whole.square().sum(), (hidden, weight))
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", 8 * rows * V)
    cut = token_divergences(hidden, teacher, weight, 0.7)
    torch.testing.assert_close(cut, whole)
    found = torch.autograd.grad(cut.square().sum(), (hidden, weight))
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right)


def test_half_precision_keeps_a_small_divergence() -> None:
    """From the change of the states: two roundings of large logits would drown it."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(200, 64, generator=generator).bfloat16()
    hidden = (2 * torch.randn(30, 64, generator=generator)).bfloat16()
    teacher = (hidden.float() * (1 + 0.02 * torch.randn(30, 64, generator=generator))).bfloat16()
    expected = literal(hidden.double(), teacher.double(), weight.double(), 1.0)
    found = token_divergences(hidden, teacher, weight)
    assert found.dtype == torch.float32
    assert float((found - expected).abs().mean() / expected.mean()) < 0.05
