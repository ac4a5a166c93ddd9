"""Per-token objectives: values, gradients and clip decisions by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from counterpoise.update.surrogates import SurrogateInputs, SurrogateOutputs
from counterpoise.variants import SURROGATES

LOW, HIGH = 0.2, 0.28


def run(
    name: str,
    ratios: Sequence[float],
    advantages: Sequence[float],
    old: Sequence[float] | float = -2.0,
    row: Sequence[int] | None = None,
) -> tuple[list[float], list[float], list[bool]]:
    """(losses, gradients with respect to the log-probabilities, clipped) of each token."""
    old_logprobs = torch.full((len(ratios),), 0.0, dtype=torch.float64) + torch.tensor(
        old, dtype=torch.float64
    )
    logprobs = (old_logprobs + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    rows = torch.tensor(row if row is not None else [0] * len(ratios))
    out: SurrogateOutputs = SURROGATES.load(name)(
        SurrogateInputs(
            logprobs=logprobs,
            old_logprobs=old_logprobs,
            advantages=torch.tensor(advantages, dtype=torch.float64),
            row=rows,
            num_rows=int(rows.max()) + 1,
            clip_low=LOW,
            clip_high=HIGH,
        )
    )
    assert out.loss.shape == out.clipped.shape == logprobs.shape
    assert out.clipped.dtype == torch.bool
    (gradient,) = torch.autograd.grad(out.loss.sum(), logprobs)
    return out.loss.tolist(), gradient.tolist(), out.clipped.tolist()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, False),
        (1.0, -2.0, 2.0, 2.0, False),
        (1.1, 2.0, -2.2, -2.2, False),  # inside
        (0.9, -2.0, 1.8, 1.8, False),
        (1.5, 2.0, -2.56, 0.0, True),  # too far up for a right token: held at 1.28
        (0.5, -2.0, 1.6, 0.0, True),  # too far down for a wrong one: held at 0.8
        (1.5, -2.0, 3.0, 3.0, False),  # a wrong token that rose is pushed back in full
        (0.5, 2.0, -1.0, -1.0, False),  # and so is a right one that fell
        (1.25, 2.0, -2.5, -2.5, False),  # clip-higher: 1.2 is not the bound
        (1.5, 0.0, 0.0, 0.0, False),
    ],
)
def test_grpo(ratio: float, advantage: float, loss: float, gradient: float, clipped: bool) -> None:
    losses, gradients, decisions = run("grpo", [ratio], [advantage])
    assert losses == pytest.approx([loss])
    assert gradients == pytest.approx([gradient])
    assert decisions == [clipped]


def test_grpo_decides_token_by_token() -> None:
    losses, gradients, clipped = run("grpo", [1.5, 1.1, 0.5], [1.0, 1.0, 1.0])
    assert losses == pytest.approx([-1.28, -1.1, -0.5])
    assert gradients == pytest.approx([0.0, -1.1, -0.5])
    assert clipped == [True, False, False]


def test_gspo_decides_response_by_response() -> None:
    # Row 0: ratios 3 and 1/3 have geometric mean 1, inside. Row 1: sqrt(4 * 1) = 2, outside.
    losses, gradients, clipped = run(
        "gspo", [3.0, 1 / 3, 4.0, 1.0], [1.0, 1.0, 1.0, 1.0], row=[0, 0, 1, 1]
    )
    assert losses == pytest.approx([-1.0, -1.0, -1.28, -1.28])
    assert gradients == pytest.approx([-1.0, -1.0, 0.0, 0.0])
    assert clipped == [False, False, True, True]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.5, 2.0, -2.56, 0.0, True),
        (1.5, -2.0, 3.0, 3.0, False),
        (0.5, 2.0, -1.0, -1.0, False),
        (0.5, -2.0, 1.6, 0.0, True),
    ],
)
def test_gspo_clips_on_the_side_of_the_sign(
    ratio: float, advantage: float, loss: float, gradient: float, clipped: bool
) -> None:
    losses, gradients, decisions = run("gspo", [ratio] * 3, [advantage] * 3)
    assert losses == pytest.approx([loss] * 3)
    assert gradients == pytest.approx([gradient] * 3)
    assert decisions == [clipped] * 3


def test_gspo_rows_may_lie_in_any_order() -> None:
    losses, _, _ = run("gspo", [2.0, 1.1, 0.5, 1.1], [1.0] * 4, row=[1, 0, 1, 0])
    assert losses == pytest.approx([-1.0, -1.1, -1.0, -1.1])


def test_cispo_bounds_the_weight_and_keeps_the_gradient() -> None:
    ratios, advantages, old = [1.5, 0.5, 1.1, 1.5, 0.5], [2.0, 2.0, 2.0, -2.0, -2.0], -3.0
    losses, gradients, clipped = run("cispo", ratios, advantages, old)
    weights = [1.28, 0.8, 1.1, 1.28, 0.8]
    assert gradients == pytest.approx([-w * a for w, a in zip(weights, advantages, strict=True)])
    assert losses == pytest.approx(
        [-w * a * (old + math.log(r)) for w, a, r in zip(weights, advantages, ratios, strict=True)]
    )
    assert not any(clipped)


def test_reinforce_knows_no_ratio() -> None:
    losses, gradients, clipped = run("reinforce", [1.5, 0.1], [2.0, -1.0], old=-3.0)
    assert losses == pytest.approx([-2 * (-3 + math.log(1.5)), -3 + math.log(0.1)])
    assert gradients == [-2.0, 1.0]
    assert not any(clipped)


def test_unclipped_is_the_ratio_alone() -> None:
    losses, gradients, clipped = run("unclipped", [1.5, 0.1, 9.0], [2.0, -1.0, 1.0])
    assert losses == pytest.approx([-3.0, 0.1, -9.0])
    assert gradients == pytest.approx(losses)
    assert not any(clipped)


@pytest.mark.parametrize("name", SURROGATES)
def test_on_policy_they_all_have_the_same_gradient(name: str) -> None:
    advantages = [1.5, -0.5, 0.0, 2.0]
    _, gradients, clipped = run(name, [1.0] * 4, advantages, row=[0, 0, 1, 1])
    assert gradients == pytest.approx([-a for a in advantages])
    assert not any(clipped)


@pytest.mark.parametrize("name", SURROGATES)
def test_linear_in_the_advantage(name: str) -> None:
    """What lets rows without advantage be spared a forward pass."""
    ratios = [1.5, 0.5, 1.1, 0.95]
    once = run(name, ratios, [1.0, -1.0, 0.5, 0.0])
    twice = run(name, ratios, [2.0, -2.0, 1.0, 0.0])
    assert twice[0] == pytest.approx([2 * x for x in once[0]])
    assert twice[1] == pytest.approx([2 * x for x in once[1]])
    assert once[0][3] == once[1][3] == 0.0


@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_clipped_means_that_the_gradient_is_gone(name: str) -> None:
    for ratio in (0.1, 0.79, 0.81, 1.0, 1.27, 1.29, 10.0):
        for advantage in (1.0, -1.0):
            _, gradients, clipped = run(name, [ratio], [advantage])
            assert clipped == [gradients[0] == 0.0]


@pytest.mark.parametrize(
    ("old", "ratio", "advantage", "factor"),
    [
        (0.2, 1.0, 2.0, 1.0),
        (0.2, 1.0, -2.0, 1.0),
        (0.2, 1.7, 2.0, 0.5),  # up by 0.14, half of 0.28
        (0.2, 0.5, -2.0, 0.5),  # down by 0.1, half of 0.2
        (0.2, 2.4, 2.0, 0.0),  # at DPPO's boundary
        (0.2, 3.8, 2.0, -1.0),  # beyond it: pulled back
        (0.2, 0.5, 2.0, 1 + 0.1 / 0.28),  # on the wrong side: pushed harder
        (0.001, 20.0, 2.0, 1 - 0.019 / 0.28),  # a rare token may rise by much
    ],
)
def test_drpo_weakens_and_reverses(
    old: float, ratio: float, advantage: float, factor: float
) -> None:
    losses, gradients, clipped = run("drpo", [ratio], [advantage], math.log(old))
    reach = HIGH if advantage > 0 else LOW
    penalty = abs(advantage) * old * (ratio - 1) ** 2 / (2 * reach)
    assert losses == pytest.approx([-ratio * advantage + penalty])
    assert gradients == pytest.approx([-advantage * ratio * factor], abs=1e-12)
    assert clipped == [False]
