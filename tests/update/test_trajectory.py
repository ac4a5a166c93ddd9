"""DFPO's weights: by hand, their residual, and the gradient they give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

from counterpoise.config import UpdateConfig
from counterpoise.config.load import config_from_tables
from counterpoise.errors import PoiseError
from counterpoise.model.scoring import score_logprobs
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import StepSettings, accumulate_gradient, take_step
from counterpoise.update.trajectory import with_trajectory_weights
from counterpoise.variants import TRAJECTORY_WEIGHTS

A = np.array([1.0, 1.0, -2.0])
W = np.array([1.0, 3.0, 0.5])


def test_by_hand() -> None:
    assert TRAJECTORY_WEIGHTS.load("off")(W, A).tolist() == [1, 1, 1]
    assert TRAJECTORY_WEIGHTS.load("min_replace")(W, A).tolist() == [0.5, 0.5, 0.5]
    # A.w = 3, |A|^2 = 6: w - A / 2
    assert TRAJECTORY_WEIGHTS.load("orthogonal")(W, A).tolist() == [0.5, 2.5, 1.5]


@pytest.mark.parametrize("name", ["min_replace", "orthogonal"])
@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_left_on_what_all_share(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ratios = np.exp(rng.normal(size=8))
    advantages = rng.normal(size=8)
    advantages -= advantages.mean()
    weights = TRAJECTORY_WEIGHTS.load(name)(ratios, advantages)
    gross = np.abs(advantages * weights).sum()
    assert abs((advantages * weights).sum()) < 1e-14 * gross
    assert abs((advantages * ratios).sum()) > 1e-3 * gross  # the plain ratio's


@pytest.mark.parametrize("name", ["min_replace", "orthogonal"])
def test_equal_ratios_stay(name: str) -> None:
    weights = TRAJECTORY_WEIGHTS.load(name)(np.full(3, 0.7), A)
    np.testing.assert_allclose(weights, 0.7, atol=1e-15)


def test_weights_multiply_what_credit_gave() -> None:
    rows = tiny.rows(groups=2, size=3, seed=1)
    rows[0] = replace(rows[0], weights_T=np.full(rows[0].num_tokens, 2.0, np.float32))
    now = [row.old_logprobs + 0.1 * (i + 1) for i, row in enumerate(rows)]
    found = with_trajectory_weights(rows, now, "min_replace")
    least = np.exp([0.1, 0.4])  # of either group
    for i, row in enumerate(found):
        expected = least[i // 3] * (2.0 if i == 0 else 1.0)
        np.testing.assert_allclose(row.weights_T, expected, rtol=1e-5)
        assert row.advantage == rows[i].advantage


@pytest.mark.parametrize("name", ["min_replace", "orthogonal"])
def test_the_step_is_the_one_of_the_formula(name: str) -> None:
    config = UpdateConfig(
        surrogate="reinforce", trajectory=name, optimizer="sgd", lr=0.5, max_grad_norm=0.0,
        micro_tokens=30,
    )  # fmt: skip
    rows = tiny.rows(groups=3, size=4, seed=3)
    policy = tiny.policy()
    now = score_logprobs(policy, rows, 1.0, 1000)
    tokens = sum(row.num_tokens for row in rows)
    loss = torch.zeros(())
    for g in range(3):
        part = range(4 * g, 4 * g + 4)
        ratios = np.array([np.exp(np.mean(now[i] - rows[i].old_logprobs)) for i in part])
        advantages = np.array([rows[i].advantage for i in part])
        if name == "min_replace":
            weights = [min(ratios)] * 4
        else:
            share = sum(a * w for a, w in zip(advantages, ratios, strict=True)) / sum(advantages**2)
            weights = [w - share * a for a, w in zip(advantages, ratios, strict=True)]
        for i, weight in zip(part, weights, strict=True):
            content = rows[i].content
            ids = torch.from_numpy(np.concatenate((content.prompt_tokens, content.response_tokens)))
            S = len(content.prompt_tokens)
            logits = policy.model(ids[None].long()).logits[0, S - 1 : -1]
            logp = torch.log_softmax(logits, -1).gather(1, ids[S:, None].long()).sum()
            loss = loss - rows[i].advantage * weight * logp / tokens
    before = [p.detach().clone() for p in policy.model.parameters()]
    expected = torch.autograd.grad(loss, list(policy.model.parameters()))
    take_step(
        policy,
        Optimizer(policy.model, config),
        rows,
        StepSettings(config, temperature=1.0, max_new_tokens=17),
    )
    for was, is_, gradient in zip(before, policy.model.parameters(), expected, strict=True):
        torch.testing.assert_close(was - is_, 0.5 * gradient, atol=2e-6, rtol=1e-4)


def test_at_the_first_step_it_is_plain() -> None:
    plain = UpdateConfig(surrogate="reinforce")
    rows = tiny.rows(groups=3, size=4, seed=3)
    ours = with_trajectory_weights(rows, [None] * len(rows), "min_replace")
    gradients = []
    for given in (rows, ours):
        policy = tiny.policy()
        accumulate_gradient(
            policy, given, StepSettings(plain, temperature=1.0, max_new_tokens=17), on_policy=True
        )
        gradients.append(torch.cat([p.grad.flatten() for p in policy.model.parameters()]))
    assert torch.equal(*gradients)


@pytest.mark.parametrize("name", ["min_replace", "orthogonal"])
def test_rows_that_waited_through_an_update_keep_their_ratio(name: str) -> None:
    """A batch's first step is on-policy for fresh rows; those of the buffer have old scores."""
    config = UpdateConfig(surrogate="reinforce", trajectory=name, max_grad_norm=0.0)
    policy, rows = tiny.policy(), tiny.rows(groups=2, size=4, seed=3)
    now = score_logprobs(policy, rows, 1.0, 1000)
    old = [scores_T - np.float32(0.1 * (i - 2)) for i, scores_T in enumerate(now[:4])]
    rows[:4] = [replace(row, trainer_logprobs_T=x) for row, x in zip(rows[:4], old, strict=True)]
    result = take_step(
        policy,
        Optimizer(policy.model, config),
        rows,
        StepSettings(config, temperature=1.0, max_new_tokens=17),
        on_policy=True,
    )
    A_G = np.array([row.advantage for row in rows[:4]])
    expected = TRAJECTORY_WEIGHTS.load(name)(np.exp(0.1 * (np.arange(4) - 2)), A_G) * A_G
    for i, found_T in enumerate(result.advantages):
        wanted = expected[i] if i < 4 else rows[i].advantage
        np.testing.assert_allclose(found_T, wanted, rtol=1e-4)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["update.trajectory=min_replace"], "needs update.surrogate=reinforce"),
        (
            ["update.trajectory=orthogonal", "update.surrogate=reinforce",
             "update.aggregate=sequence_mean"],
            "one denominator",
        ),
    ],
)  # fmt: skip
def test_what_would_break_it_is_refused(sets: list[str], message: str) -> None:
    with pytest.raises(PoiseError, match=message):
        config_from_tables({}, sets)
