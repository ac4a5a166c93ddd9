"""Pushes on held-out tokens are those of autograd through the head, however they are summed."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
import pytest
import torch
from torch import Tensor

from counterpoise.microscope import heldout_pushes
from counterpoise.microscope.heldout_pushes import HeldoutPushes
from counterpoise.model.residuals import Residuals

V, D = 23, 7
ROWS, ANSWERS = [4, 1, 6], [3, 5, 2, 4]
N, J = sum(ROWS), sum(ANSWERS)
SETS = [[0, 2], [1], [3], []]


class Case:
    """Random hidden states in float64 and the pushes between all pairs of tokens, by autograd."""

    def __init__(self, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.hidden = torch.randn(N + J, D, generator=generator, dtype=torch.float64)
        self.W = torch.randn(V, D, generator=generator, dtype=torch.float64)
        self.tokens = torch.randint(0, V // 3, (N + J,), generator=generator)  # many are equal
        self.pulls = torch.randn(N, generator=generator, dtype=torch.float64)
        self.pulls[2] = 0.0
        W = self.W.clone().requires_grad_()
        logprobs = torch.log_softmax(self.hidden @ W.T, dim=-1).gather(1, self.tokens[:, None])
        gradients = torch.stack(
            [torch.autograd.grad(logprob, W, retain_graph=True)[0] for logprob in logprobs[:, 0]]
        ).flatten(1)
        self.push_NJ = self.pulls[:, None] * (gradients[:N] @ gradients[N:].T)

    @property
    def pushes(self) -> HeldoutPushes:
        residuals = Residuals(self.hidden, self.W, self.tokens)
        return HeldoutPushes(residuals, self.pulls, ROWS, ANSWERS)

    def by_row(self) -> Tensor:
        return torch.stack(
            [
                torch.stack([block.sum() for block in rows.split(ANSWERS, dim=1)])
                for rows in self.push_NJ.split(ROWS)
            ]
        )


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("chunk_tokens", [1000, 5], ids=["one chunk", "many chunks"])
def test_sums_are_those_of_autograd(chunk_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    for module in ("model.residuals", "microscope.heldout_pushes"):
        monkeypatch.setattr(f"counterpoise.{module}.chunk_bytes", lambda _: chunk_tokens * V * 8)
    sums = case.pushes.sums(SETS)
    close(sums.by_row_RQ, case.by_row())
    by_sign = [case.push_NJ[case.pulls * sign > 0] for sign in (1, -1)]
    close(sums.signed_J2, torch.stack([push.sum(dim=0) for push in by_sign], dim=1))
    is_equal = case.tokens[:N, None] == case.tokens[N:]
    for column, sign in enumerate((1, -1)):
        same = (case.push_NJ * is_equal)[case.pulls * sign > 0].sum(dim=0)
        close(sums.same_token_J2[:, column], same)
    push_NQ = torch.stack([block.sum(dim=1) for block in case.push_NJ.split(ANSWERS, dim=1)], dim=1)
    for column, answers in enumerate(SETS):
        expected = push_NQ[:, answers].mean(dim=1) if answers else torch.zeros(N).double()
        close(sums.on_sets_NC[:, column], expected)


@pytest.mark.parametrize("matrices", [1, 2, 100])
def test_both_methods_give_the_same_sums(matrices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(seed=1)
    pushes = case.pushes
    monkeypatch.setattr(heldout_pushes, "chunk_bytes", lambda _: matrices * V * D * 8)
    assert pushes._matrices_per_block == matrices
    close(pushes._by_matrices(), case.by_row())
    close(pushes._by_kernel(), case.by_row())


@pytest.mark.parametrize("chunk_tokens", [1000, 5], ids=["one chunk", "many chunks"])
def test_half_precision_on_a_gpu_rounds_little(
    chunk_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pulls that are far apart, and states whose sums would overflow in float16."""
    case = Case(seed=3)
    case.hidden[:, 0] += 10_000.0
    case.pulls *= torch.logspace(-6, 0, N)
    monkeypatch.setitem(heldout_pushes.PRODUCT_SPLITS, "cpu", 2)
    for module in ("model.residuals", "microscope.heldout_pushes"):
        monkeypatch.setattr(f"counterpoise.{module}.chunk_bytes", lambda _: chunk_tokens * V * 2)
    case.W[:, 0] = 0.0  # so that these states do not decide the distributions
    exact = case.pushes.sums(SETS)
    residuals = Residuals(case.hidden.float(), case.W.float(), case.tokens, precision=torch.float16)
    pushes = HeldoutPushes(residuals, case.pulls, ROWS, ANSWERS)
    rounded = pushes.sums(SETS)
    for expected, actual in (
        (exact.by_row_RQ, pushes._by_matrices()),
        (exact.by_row_RQ, rounded.by_row_RQ),
        (exact.on_sets_NC, rounded.on_sets_NC),
    ):
        error = (actual - expected).abs() / expected.abs().amax(dim=1, keepdim=True).clamp(1e-9)
        assert float(error.max()) < 0.01


def test_the_strongest_tokens_are_those_of_the_strongest_rows() -> None:
    case = Case(seed=2)
    by_row = case.by_row().numpy()
    starts = [0, *accumulate(ROWS)]
    answer_starts = [0, *accumulate(ANSWERS)]
    strongest = case.pushes.strongest_tokens(by_row, [1, 3])
    assert set(strongest.answers.tolist()) == {1, 3}
    for answer, row, position, push in zip(
        strongest.answers, strongest.rows, strongest.positions, strongest.pushes, strict=True
    ):
        block = slice(answer_starts[answer], answer_starts[answer + 1])
        assert math.isclose(
            push, float(case.push_NJ[starts[row] + position, block].sum()), rel_tol=1e-5
        )
    # Three rows: both extremes are stored, and a row is never stored twice.
    for answer in (1, 3):
        rows = set(strongest.rows[strongest.answers == answer].tolist())
        assert {int(np.argmax(by_row[:, answer])), int(np.argmin(by_row[:, answer]))} <= rows
    places = zip(strongest.answers, strongest.rows, strongest.positions, strict=True)
    assert len(set(places)) == len(strongest.pushes)


def test_a_step_that_pulls_nothing_pushes_nothing() -> None:
    case = Case()
    residuals = Residuals(case.hidden, case.W, case.tokens)
    sums = HeldoutPushes(residuals, torch.zeros(N), ROWS, ANSWERS).sums(SETS)
    for values in (sums.signed_J2, sums.same_token_J2, sums.by_row_RQ, sums.on_sets_NC):
        assert not values.any()
