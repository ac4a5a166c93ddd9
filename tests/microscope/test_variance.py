"""Noise of an update: closed forms against simulation, the filter against real gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tiny
import torch

from counterpoise.batch.compose import compose
from counterpoise.batch.describe import describe_plan
from counterpoise.credit import advantages as grpo
from counterpoise.microscope.variance import (
    CUTS,
    ScoreSpread,
    noise_factor,
    rollout_scores,
    shuffle_advantages,
    spread_from_prompts,
    unit_score_directions,
    update_along_direction,
    update_noise,
)
from counterpoise.model.scoring import forward, score_logprobs
from counterpoise.types import Rollout, Row

G = 8


def advantages(right: int, population: bool = False) -> np.ndarray:
    rewards = np.array([1.0] * right + [0.0] * (G - right))
    if population:
        return (rewards - rewards.mean()) / rewards.std()
    return grpo.grpo(rewards)


def gaussian(P: int, s2: float, rho: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    common, alone = rng.normal(size=(P, 1)), rng.normal(size=(P, G))
    return math.sqrt(s2) * (math.sqrt(rho) * common + math.sqrt(1 - rho) * alone)


def closed_form(A_B: np.ndarray, spread: ScoreSpread) -> float:
    """Var <u, U_B> for the advantages of a part of one group."""
    factor = (1 - spread.rho) * np.square(A_B).sum() + spread.rho * A_B.sum() ** 2
    return float(spread.s2 / len(A_B) ** 2 * factor)


def success_gap(X_PG: np.ndarray, A_PG: np.ndarray) -> np.ndarray:
    """<u, gbar+ - gbar-> of every group: [P]; groups need both signs."""
    is_right = A_PG > 0
    right = (X_PG * is_right).sum(axis=1) / is_right.sum(axis=1)
    return right - (X_PG * ~is_right).sum(axis=1) / (~is_right).sum(axis=1)


def filter_gain(p: np.ndarray | float, *, unbiased: bool = True) -> np.ndarray:
    """The factor of the success gap in U: sqrt(p (1-p)), times sqrt((G-1)/G) for unbiased std."""
    return np.sqrt(np.asarray(p) * (1 - p) * ((G - 1) / G if unbiased else 1.0))


def test_worked_example() -> None:
    """G = 8, three right, rho = 0.7, population std: whole, two of each sign, the right ones."""
    A, of = advantages(3, population=True), ScoreSpread(1.0, 0.7)
    assert closed_form(A, of) == pytest.approx(0.0375)
    assert closed_form(A[[0, 1, 3, 4]], of) == pytest.approx(0.131667, abs=1e-6)
    assert closed_form(A[:3], of) == pytest.approx(1.333333, abs=1e-6)


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("part", [range(8), (0, 1, 3, 4), range(3), range(3, 8), (2,)])
def test_closed_form_of_any_part(rho: float, part: range) -> None:
    """The variance of 40,000 simulated updates, within four of its standard errors."""
    X, A = gaussian(40_000, 2.5, rho), advantages(3)
    B = list(part)
    drawn = (A[B] * X[:, B]).mean(axis=1)
    expected = closed_form(A[B], ScoreSpread(2.5, rho))
    assert drawn.var() == pytest.approx(expected, rel=4 * math.sqrt(2 / 40_000), abs=1e-12)


def spread_of(X_PG: np.ndarray) -> ScoreSpread:
    mean_P = X_PG.mean(axis=1)
    within_P = np.square(X_PG - mean_P[:, None]).sum(axis=1)
    return spread_from_prompts(mean_P, within_P, X_PG.shape[1])


@pytest.mark.parametrize("rho", [0.0, 0.4, 0.9])
def test_intraclass_finds_what_was_put_in(rho: float) -> None:
    found = spread_of(gaussian(20_000, 1.7, rho, seed=1))
    error = (1 - rho) * (1 + (G - 1) * rho) * math.sqrt(2 / (20_000 * G * (G - 1)))  # of rho
    assert found.rho == pytest.approx(rho, abs=4 * error)
    s2_error = 1.7 * math.sqrt(2 / 20_000 * (rho**2 + (1 - rho**2) / G))
    assert found.s2 == pytest.approx(1.7, abs=4 * s2_error)


def test_intraclass_by_hand() -> None:
    """Means 1 and 3: MSB = 2 * 2 = 4. Within: 2 + 2 over 2: MSW = 2. Cov = 1, s2 = 3."""
    found = spread_of(np.array([[0.0, 2.0], [2.0, 4.0]]))
    assert found.s2 == pytest.approx(3)
    assert found.rho == pytest.approx(1 / 3)


def test_weights_are_repeated_prompts() -> None:
    X = gaussian(5, 1.0, 0.5)
    within = np.square(X - X.mean(axis=1, keepdims=True)).sum(axis=1)
    weights = np.array([2, 0, 1, 1, 3])
    expected = spread_of(np.repeat(X, weights, axis=0))
    found = spread_from_prompts(X.mean(axis=1), within, G, weights)
    assert (found.s2, found.rho) == pytest.approx((expected.s2, expected.rho))


@pytest.mark.parametrize("cut", CUTS)
def test_factor_of_every_cut(cut: str) -> None:
    """Dealt advantages, mixed success rates: measured noise is 1 + rho C."""
    rng = np.random.default_rng(2)
    P, rho = 30_000, 0.6
    X = gaussian(P, 1.0, rho, seed=3)
    A = shuffle_advantages(np.array([advantages(k) for k in rng.integers(1, G, P)]), rng)
    found = update_noise(X, A, CUTS[cut](A, rng))
    measured = found.measured / found.sum_of_squares.mean()
    expected = noise_factor(found.sum_of_squares.mean(), found.squared_sums.mean(), rho)
    assert measured.mean() == pytest.approx(expected, abs=4 * measured.std() / math.sqrt(P))


def test_cuts_are_what_they_say() -> None:
    rng = np.random.default_rng(0)
    A = np.array([shuffle_advantages(advantages(k)[None], rng)[0] for k in (1, 4, 4, 6)])
    assert (CUTS["whole"](A, rng) == 0).all()
    assert (CUTS["random halves"](A, rng).sum(axis=1) == 4).all()
    balanced = CUTS["balanced halves"](A, rng)
    assert (balanced.sum(axis=1) == 4).all()
    assert ((balanced == 0) & (A > 0)).sum(axis=1).tolist() in ([0, 2, 2, 3], [1, 2, 2, 3])
    np.testing.assert_array_equal(CUTS["by sign"](A, rng) == 1, A > 0)
    assert update_noise(A, A, balanced).squared_sums[1] == pytest.approx(
        0, abs=1e-12
    )  # 2+2 and 2+2


def test_sums_are_those_of_the_plan() -> None:
    """sum S_B^2 - sum A^2 over all groups is the cross term that `describe` reports for a plan."""
    rng = np.random.default_rng(4)
    A = np.array([shuffle_advantages(advantages(k)[None], rng)[0] for k in (2, 3, 5, 6, 4, 1)])
    rows = [Row(f"q{p}", float(A[p, i]), 9 + i, index=i) for p in range(6) for i in range(G)]
    plan = compose("shuffled", rows, 3, seed=0)
    part = np.empty(len(rows), dtype=np.int64)
    for s, step in enumerate(plan.steps):
        part[list(step)] = s
    found = update_noise(A, A, part.reshape(6, G))
    cross = sum(describe_plan(rows, plan)["cross_advantage_sum"])
    assert found.squared_sums.sum() - found.sum_of_squares.sum() == pytest.approx(cross)


# -- on a model -----------------------------------------------------------------------------------


def group(right: int, seed: int) -> list[Row]:
    rows = tiny.rows(groups=1, size=G, seed=seed)
    return [
        Row(r.group, float(a), r.num_tokens, index=r.index, rollout=r.rollout)
        for r, a in zip(rows, advantages(right), strict=True)
    ]


def score_of(policy: object, rows: list[Row], weights: np.ndarray) -> torch.Tensor:
    """sum_i w_i g_i by plain autograd, flat."""
    parameters = list(policy.model.parameters())  # type: ignore[attr-defined]
    passed = forward(policy, rows, 1.0)  # type: ignore[arg-type]
    sums = torch.stack([part.sum() for part in passed.logprobs_M.split(passed.lengths)])
    grads = torch.autograd.grad((sums * torch.from_numpy(weights).to(sums)).sum(), parameters)
    return torch.cat([g.flatten() for g in grads])


@pytest.mark.parametrize("right", [1, 3, 6])
def test_filter_identity_on_gradients(right: int) -> None:
    """1/G sum A g = 1/G sum A (g - gbar) = sqrt(p(1-p)) sqrt((G-1)/G) (gbar+ - gbar-)."""
    policy = tiny.policy()
    policy.model.double()
    rows = group(right, seed=right)
    A, p = np.array([r.advantage for r in rows]), right / G
    update = score_of(policy, rows, A / G)
    centred = update - A.sum() / G * score_of(policy, rows, np.full(G, 1 / G))
    gap = score_of(policy, rows, np.where(A > 0, 1 / right, -1 / (G - right)))
    scale = float(update.abs().max())
    assert float((update - centred).abs().max()) < 1e-6 * scale
    expected = float(filter_gain(p)) * gap / (1 + 1e-6 / math.sqrt(p * (1 - p) * G / (G - 1)))
    assert float((update - expected).abs().max()) < 1e-6 * scale
    population = advantages(right, population=True)
    update = score_of(policy, rows, population / G)
    assert float((update - float(filter_gain(p, unbiased=False)) * gap).abs().max()) < 1e-6 * scale


def test_scores_along_a_direction_are_inner_products() -> None:
    policy = tiny.policy()
    rows = group(3, seed=7)
    weights = [np.linspace(-1, 1, r.num_tokens) for r in rows]
    u = unit_score_directions(policy, rows[:4], {"u": weights[:4]}, micro_tokens=40)["u"]
    assert sum(float(x.square().sum()) for x in u.values()) == pytest.approx(1, rel=1e-5)
    flat = torch.cat([u[name].flatten() for name, _ in policy.model.named_parameters()])
    expected = [float(flat @ score_of(policy, rows, np.eye(G)[i])) for i in range(G)]
    found = rollout_scores(policy, rows, u, micro_tokens=40)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4 * max(map(abs, expected)))


def test_a_score_has_mean_zero() -> None:
    """E[g | q] = 0, so rollouts that are drawn independently are uncorrelated: rho = 0. Exactly,
    for responses of one token: all of them, each with its probability."""
    policy = tiny.policy()
    prompt = np.array([5, 6, 7], dtype=np.int32)
    rows = [
        Row("q", 1.0, 1, rollout=Rollout("q", "q", "", "", 0.0, prompt, np.array([v]), np.zeros(1)))
        for v in range(tiny.VOCABULARY)
    ]
    chances = np.exp([float(x[0]) for x in score_logprobs(policy, rows, 1.0, 16384)])
    assert chances.sum() == pytest.approx(1, abs=1e-5)
    u = unit_score_directions(policy, rows[3:7], {"u": np.ones(4)})["u"]
    X = rollout_scores(policy, rows, u)
    assert abs((chances * X).sum()) < 1e-4 * np.sqrt((chances * X**2).sum())


def test_update_and_gap_along_a_direction() -> None:
    X, A = gaussian(4, 1.0, 0.2, seed=9), np.array([advantages(k) for k in (1, 3, 4, 7)])
    p = (A > 0).mean(axis=1)
    np.testing.assert_allclose(
        update_along_direction(X, A), filter_gain(p) * success_gap(X, A), rtol=5e-6
    )
