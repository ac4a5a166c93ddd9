"""Kernel rows and first-order displacement against explicit per-token gradients."""

from __future__ import annotations

import pytest
import tiny
import torch

from counterpoise.errors import PoiseError
from counterpoise.microscope.batch_tokens import take_snapshot
from counterpoise.microscope.parameter_kernel import (
    derivatives_along,
    parameter_kernel_row,
    token_gradient,
)
from counterpoise.model.load import Policy
from counterpoise.types import Row


def double(architecture: str, tied: bool) -> Policy:
    policy = tiny.policy(architecture, tie_word_embeddings=tied)
    policy.model.double()
    return policy


def explicit(policy: Policy, rows: list[Row], direction: dict[str, torch.Tensor]) -> torch.Tensor:
    """<g_k, direction>, one backward a token."""
    return torch.stack(
        [
            sum((g * direction[name]).sum() for name, g in gradient.items())
            for r, row in enumerate(rows)
            for gradient in [token_gradient(policy, rows, (r, t)) for t in range(row.num_tokens)]
        ]
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_row_of_the_kernel_is_one_backward_and_one_forward(architecture: str, tied: bool) -> None:
    policy, rows = double(architecture, tied), tiny.rows(groups=2, size=3, longest=6)
    candidate = (1, rows[1].num_tokens - 1)
    gradient = token_gradient(policy, rows, candidate)
    expected = explicit(policy, rows, gradient)
    found = parameter_kernel_row(policy, rows, candidate)
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-6
    cut = parameter_kernel_row(policy, rows, candidate, micro_tokens=12)
    assert float((cut - expected).abs().max() / expected.abs().max()) < 1e-6


def test_temperature_and_chunks_of_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    from counterpoise.model import head

    policy, rows = double("qwen3", True), tiny.rows(groups=1, size=3, longest=5)
    gradient = token_gradient(policy, rows, (0, 0), temperature=0.7)
    whole = derivatives_along(policy, rows, gradient, temperature=0.7)
    monkeypatch.setattr(head, "CHUNK_ELEMENTS", 2 * tiny.VOCABULARY)
    torch.testing.assert_close(derivatives_along(policy, rows, gradient, temperature=0.7), whole)
    own = sum(float((g * g).sum()) for g in gradient.values())
    assert float(whole[0]) == pytest.approx(own, rel=1e-6)


def test_a_small_step_moves_tokens_as_forward_mode_says() -> None:
    policy, rows = double("qwen3", True), tiny.rows()
    torch.manual_seed(0)
    direction = {n: torch.randn_like(p) for n, p in policy.model.named_parameters()}
    before = take_snapshot(policy, rows).logprobs
    predicted = derivatives_along(policy, rows, direction)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            weight += 1e-8 * direction[name]
    moved = (take_snapshot(policy, rows).logprobs - before) / 1e-8
    torch.testing.assert_close(moved, predicted, rtol=1e-3, atol=1e-3)


def test_a_part_of_the_parameters_may_stand_still() -> None:
    policy, rows = double("llama", False), tiny.rows(groups=1, size=2)
    head = {"lm_head.weight": torch.ones_like(policy.decoder.unembedding)}
    assert (
        float(derivatives_along(policy, rows, head).abs().max()) < 1e-12
    )  # equal logits move nothing


def test_no_such_token_and_no_such_parameter() -> None:
    policy, rows = tiny.policy(), tiny.rows(groups=1, size=2)
    with pytest.raises(PoiseError, match="no token 99 in row 0"):
        parameter_kernel_row(policy, rows, (0, 99))
    with pytest.raises(PoiseError, match="no parameter 'nothing'"):
        derivatives_along(policy, rows, {"nothing": torch.zeros(1)})
    with pytest.raises(PoiseError, match="moves no parameter"):
        derivatives_along(policy, rows, {})
