"""Clip-Cov: which tokens may be drawn, how many, and what the step then leaves out."""

from __future__ import annotations

from dataclasses import replace

import by_autograd as by
import numpy as np
import pytest
import tiny
import torch

from counterpoise.config.load import config_from_tables
from counterpoise.errors import PoiseError
from counterpoise.model.load import Policy
from counterpoise.types import Row
from counterpoise.update.rules.bind import BoundRule, OptimizerStepView
from counterpoise.update.rules.clip_cov import rule

ROWS = tiny.rows(groups=4, size=5, seed=2)
LOW, HIGH = 0.3, 2.0


def bound(policy: Policy, micro: int = 10_000, seed: int = 0, **settings: float) -> BoundRule:
    return BoundRule(rule, settings, by.reader(policy, micro=micro, seed=seed), by.PLAIN, 10, None)


def candidates(policy: Policy, rows: list[Row]) -> set[tuple[int, int]]:
    """Literally: (row, token) with low < c < high that the clip leaves alone."""
    with torch.no_grad():
        logprobs = [by.of_tokens(by.logprobs_TV(policy, row), row).tolist() for row in rows]
    tokens = [(i, t) for i, row in enumerate(rows) for t in range(row.num_tokens)]
    mean_A = sum(rows[i].advantage for i, _ in tokens) / len(tokens)
    mean = sum(logprobs[i][t] for i, t in tokens) / len(tokens)
    found = set()
    for i, t in tokens:
        A = rows[i].advantage
        c = (A - mean_A) * (logprobs[i][t] - mean)
        ratio = np.exp(logprobs[i][t] - float(rows[i].old_logprobs[t]))
        clipped = ratio > 1.28 if A > 0 else ratio < 0.8
        if LOW < c < HIGH and not clipped:
            found.add((i, t))
    return found


def left_out(factors: list[np.ndarray]) -> set[tuple[int, int]]:
    return {(i, int(t)) for i, k_T in enumerate(factors) for t in np.flatnonzero(k_T == 0)}


def test_all_candidates_and_no_others() -> None:
    policy = tiny.policy()
    made = rule(OptimizerStepView(ROWS, by.reader(policy), by.PLAIN), share=1.0, low=LOW, high=HIGH)
    expected = candidates(policy, ROWS)
    assert 5 < len(expected) < sum(row.num_tokens for row in ROWS) / 2
    assert left_out(made.factors) == expected
    assert made.num_chosen == len(expected)
    assert all(set(k_T.tolist()) <= {0, 1} and k_T.dtype == np.float32 for k_T in made.factors)


def test_what_the_clip_took_is_no_candidate() -> None:
    """Old log-probabilities far off: nearly everything is clipped, one way or the other."""
    policy = tiny.policy()
    rows = tiny.rows(groups=4, size=5, seed=2, off_policy=3.0)
    made = rule(OptimizerStepView(rows, by.reader(policy), by.PLAIN), share=1.0, low=LOW, high=HIGH)
    assert left_out(made.factors) == candidates(policy, rows)
    freer = replace(by.PLAIN, surrogate="reinforce")  # without a clip all of them are free
    more = rule(OptimizerStepView(rows, by.reader(policy), freer), share=1.0, low=LOW, high=HIGH)
    assert left_out(made.factors) < left_out(more.factors)


def test_as_many_as_the_share_says_drawn_anew_in_every_step() -> None:
    policy = tiny.policy()
    tokens = sum(row.num_tokens for row in ROWS)
    drawn = []
    for number in (0, 0, 1):
        step = OptimizerStepView(ROWS, by.reader(policy), by.PLAIN, number)
        made = rule(step, share=0.03, low=LOW, high=HIGH)
        assert made.num_chosen == int(0.03 * tokens)
        drawn.append(left_out(made.factors))
        assert drawn[-1] < candidates(policy, ROWS)
    assert drawn[0] == drawn[1] != drawn[2]
    one = rule(OptimizerStepView(ROWS, by.reader(policy), by.PLAIN), share=1e-9, low=LOW, high=HIGH)
    assert one.num_chosen == 1


@pytest.mark.parametrize("micro", [10_000, 37, 1])
def test_the_step_is_that_of_the_other_tokens(micro: int) -> None:
    policy = tiny.policy()
    rule_ = bound(policy, micro, share=0.05, low=LOW, high=HIGH)
    made = rule_.for_step(0)(ROWS, on_policy=False)
    loss = torch.zeros(())
    for row, k_T in zip(ROWS, made.factors, strict=True):
        logprobs = by.of_tokens(by.logprobs_TV(policy, row), row)
        ratio = (logprobs - torch.from_numpy(row.old_logprobs)).exp()
        gain = torch.minimum(ratio * row.advantage, ratio.clamp(0.8, 1.28) * row.advantage)
        loss = loss - (torch.from_numpy(k_T) * gain).sum()
    loss = loss / sum(row.num_tokens for row in ROWS)  # of the whole step, chosen or not
    expected = by.gradient(loss, policy)
    result, found = by.stepped(policy, ROWS, rule_, replace(by.PLAIN, micro_tokens=micro))
    assert by.relative(found, expected) < 1e-5
    assert result.loss == pytest.approx(float(loss), rel=1e-4)
    assert result.chosen_share == pytest.approx(made.num_chosen / sum(r.num_tokens for r in ROWS))
    assert result.added_loss == 0


def test_factors_multiply_what_credit_gave() -> None:
    policy = tiny.policy()
    rows = [replace(r, weights_T=np.full(r.num_tokens, 2.0, np.float32)) for r in ROWS]
    result, _ = by.stepped(policy, rows, bound(policy, share=0.05, low=LOW, high=HIGH))
    pairs = zip(result.advantages, rows, strict=True)
    factors = np.concatenate([A_T / row.advantage for A_T, row in pairs])
    assert set(factors.round(5).tolist()) == {0, 2}


def test_in_a_first_step_nothing_is_clipped() -> None:
    policy = tiny.policy()
    far = tiny.rows(groups=4, size=5, seed=2, off_policy=3.0)
    step = OptimizerStepView(far, by.reader(policy), by.PLAIN, on_policy=True)
    assert not step.clipped.any()
    assert OptimizerStepView(far, by.reader(policy), by.PLAIN).clipped.any()


def test_no_candidates_leave_the_step_as_it_was() -> None:
    policy = tiny.policy()
    step = OptimizerStepView(ROWS, by.reader(policy), by.PLAIN)
    assert rule(step, low=1e6, high=2e6).factors is None
    assert rule(OptimizerStepView([])).factors is None
    _, expected = by.stepped(policy, ROWS, None)
    _, found = by.stepped(policy, ROWS, bound(policy, low=1e6, high=2e6))
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["credit.rule_settings=['share=2']"], "share must be above 0 and at most 1, not 2"),
        (["credit.rule_settings=['low=6']"], "low=6 must be below high=5"),
        (["update.trajectory=orthogonal", "update.surrogate=reinforce"], "no longer cancels"),
    ],
)
def test_what_cannot_be_is_refused(sets: list[str], message: str) -> None:
    with pytest.raises(PoiseError, match=message):
        config_from_tables({}, ["credit.rule=clip_cov", *sets])
