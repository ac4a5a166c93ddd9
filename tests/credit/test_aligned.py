"""Weights by pushes on held-out answers are those of autograd through the head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from by_autograd import TEMPERATURE, logprobs_TV, of_tokens

from counterpoise.config.load import load_config
from counterpoise.credit.aligned import steering_direction, weights
from counterpoise.credit.view import CreditView, NoPolicyError, PolicyReader
from counterpoise.errors import PoiseError
from counterpoise.types import Row

POLICY = tiny.policy(tie_word_embeddings=False)
ROWS = tiny.rows(groups=3, size=4, seed=11, shortest=5)


def make_answers(rewards: tuple[float, ...] = (1.0, 0.0, 1.0, 0.0, 0.0)) -> list[Row]:
    rows = tiny.rows(groups=3, size=2, seed=7)
    return [
        replace(row, advantage=0.0, rollout=replace(row.content, reward=reward))
        for row, reward in zip(rows, rewards, strict=False)
    ]


def make_view(answers: list[Row] | None) -> CreditView:
    return CreditView(ROWS, PolicyReader(POLICY, TEMPERATURE, steering_rows=answers))


def head_gradient(total: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(total, [POLICY.model.lm_head.weight], retain_graph=True)
    return gradient


def gradient_of_success(answers: list[Row]) -> torch.Tensor:
    """grad of mean right - mean wrong held-out log p."""
    totals = {True: [], False: []}
    for answer in answers:
        logprobs_T = of_tokens(logprobs_TV(POLICY, answer), answer)
        totals[answer.content.reward > 0].append(logprobs_T.sum())
    means = [sign * torch.stack(totals[kind]).mean() for kind, sign in ((True, 1), (False, -1))]
    return head_gradient(sum(means))


def pushes_by_autograd(answers: list[Row]) -> list[np.ndarray]:
    """<grad of A log p_t, grad of mean right - mean wrong held-out log p>, by token."""
    direction = gradient_of_success(answers)
    return [
        np.array(
            [
                row.advantage * float((head_gradient(logprob) * direction).sum())
                for logprob in of_tokens(logprobs_TV(POLICY, row), row)
            ]
        )
        for row in ROWS
    ]


def test_the_direction_is_the_gradient_of_heldout_success() -> None:
    direction = steering_direction(make_view(make_answers()))
    assert direction is not None
    expected = gradient_of_success(make_answers())
    torch.testing.assert_close(direction / TEMPERATURE, expected, rtol=1e-3, atol=1e-4)


PUSHES = pushes_by_autograd(make_answers())


def expected_weights(level: str, *, hard: bool) -> list[np.ndarray]:
    expected = []
    for pushes_T in PUSHES:
        if hard:
            chosen = pushes_T if level == "token" else np.full(len(pushes_T), pushes_T.sum())
            expected.append((chosen >= 0).astype(float))
        elif level == "row":
            share = pushes_T.sum() / np.abs(pushes_T).sum()
            expected.append(np.full(len(pushes_T), 1 + 0.5 * share))
        else:
            expected.append(1 + 0.5 * pushes_T / np.abs(pushes_T).max())
    return expected


@pytest.mark.parametrize("level", ["row", "token"])
@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
def test_the_weights_are_those_of_autograd(level: str, hard: bool) -> None:
    measured = weights(make_view(make_answers()), level=level, hard=hard)
    expected = expected_weights(level, hard=hard)
    for weights_T, expected_T in zip(measured, expected, strict=True):
        np.testing.assert_allclose(weights_T, expected_T, atol=2e-4)
    values = np.concatenate(measured)
    assert values.min() < 1 < values.max() + hard  # both kinds of rollouts are there


def test_without_answers_every_weight_is_one() -> None:
    for weights_T in weights(make_view([])):
        assert (weights_T == 1).all()
    only_right = weights(make_view(make_answers((1.0, 1.0))))
    assert all(np.isfinite(weights_T).all() for weights_T in only_right)


def test_the_judging_half_is_never_handed_over() -> None:
    """Runs give the steering half only; without probes there is nothing to read."""
    with pytest.raises(NoPolicyError, match=r"only a run with monitor\.probe"):
        weights(make_view(None))
    with pytest.raises(PoiseError, match=r"set monitor\.probe=64"):
        load_config("demo", ["credit.weights=aligned"])
    with pytest.raises(PoiseError, match="strength 2 could flip signs"):
        weights(make_view(make_answers()), strength=2.0)
    with pytest.raises(PoiseError, match="level is one of row, token"):
        weights(make_view(make_answers()), level="word")
