"""KL-Cov: which tokens, what they add, and the step against autograd."""

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
from counterpoise.update.rules.kl_cov import rule

CONFIG = replace(by.PLAIN, surrogate="unclipped")
SHARE, STRENGTH = 0.1, 0.7


def bound(policy: Policy, micro: int = 10_000, **settings: float) -> BoundRule:
    return BoundRule(rule, settings, by.reader(policy, micro=micro), CONFIG, 10, None)


def chosen(policy: Policy, rows: list[Row], share: float) -> list[tuple[int, int]]:
    """Literally: (row, token) by falling covariance."""
    with torch.no_grad():
        logprobs = [by.of_tokens(by.logprobs_TV(policy, row), row).tolist() for row in rows]
    tokens = [(i, t) for i, row in enumerate(rows) for t in range(row.num_tokens)]
    A = sum(float(rows[i].advantages_T[t]) for i, t in tokens) / len(tokens)
    mean = sum(logprobs[i][t] for i, t in tokens) / len(tokens)
    c = {(i, t): (float(rows[i].advantages_T[t]) - A) * (logprobs[i][t] - mean) for i, t in tokens}
    return sorted(tokens, key=lambda token: -c[token])[: max(1, int(share * len(tokens)))]


def literal(
    policy: Policy, rows: list[Row], share: float, strength: float, fresh: int = 0
) -> torch.Tensor:
    """The last `fresh` rows were sampled by the weights as they are."""
    held = chosen(policy, rows, share)
    loss = torch.zeros(())
    for i, row in enumerate(rows):
        logprobs = by.of_tokens(by.logprobs_TV(policy, row), row)
        old = torch.from_numpy(row.old_logprobs)
        log_ratio = logprobs - (logprobs.detach() if i >= len(rows) - fresh else old)
        loss = loss - (log_ratio.exp() * torch.from_numpy(row.advantages_T)).sum()
        for t in range(row.num_tokens):
            if (i, t) in held:
                loss = loss + strength * log_ratio[t].abs()
    return loss / sum(row.num_tokens for row in rows)


def test_the_step_is_the_one_of_the_formula() -> None:
    policy, rows = tiny.policy(), tiny.rows(groups=3, size=4, seed=3)
    loss = literal(policy, rows, SHARE, STRENGTH)
    expected = by.gradient(loss, policy)
    result, found = by.stepped(policy, rows, bound(policy, share=SHARE, strength=STRENGTH), CONFIG)
    assert by.relative(found, expected) < 1e-5
    assert result.loss == pytest.approx(float(loss), rel=1e-5)
    plain = literal(policy, rows, SHARE, 0.0)
    assert result.added_loss == pytest.approx(float(loss - plain), rel=1e-3)
    tokens = sum(row.num_tokens for row in rows)
    assert result.chosen_share == pytest.approx(int(SHARE * tokens) / tokens)


@pytest.mark.parametrize("micro", [1, 20, 37])
def test_micro_batches_change_nothing(micro: int) -> None:
    policy, rows = tiny.policy(), tiny.rows(groups=4, size=5, seed=2)
    _, expected = by.stepped(policy, rows, bound(policy, share=SHARE), CONFIG)
    cut, found = by.stepped(
        policy, rows, bound(policy, micro, share=SHARE), replace(CONFIG, micro_tokens=micro)
    )
    assert by.relative(found, expected) < 1e-5
    assert cut.added_loss > 0


def test_weights_of_credit_count_and_rows_without_signal_do_not() -> None:
    policy, rows = tiny.policy(), tiny.rows(groups=2, size=4, seed=5)
    rows[1] = replace(rows[1], weights_T=np.full(rows[1].num_tokens, 3.0, np.float32))
    expected = by.gradient(literal(policy, rows, SHARE, 1.0), policy)
    silent = [replace(row, group="silent", advantage=0.0) for row in tiny.rows(groups=1, seed=8)]
    _, found = by.stepped(policy, [*silent, *rows], bound(policy, share=SHARE), CONFIG)
    trained = sum(row.num_tokens for row in rows)
    share = trained / (trained + sum(row.num_tokens for row in silent))
    assert by.relative(found, share * expected) < 1e-5


def test_a_first_step_is_plain() -> None:
    policy, rows = tiny.policy(), tiny.rows(groups=3, size=4, seed=3)
    _, expected = by.stepped(policy, rows, None, CONFIG, on_policy=True)
    result, found = by.stepped(policy, rows, bound(policy, share=0.5), CONFIG, on_policy=True)
    assert torch.equal(found, expected)
    assert (result.added_loss, result.chosen_share) == (0, 0)


def test_a_first_step_with_rows_that_waited() -> None:
    """Only they have moved from where they were sampled: only they are held back."""
    policy, rows = tiny.policy(), tiny.rows(groups=3, size=4, seed=3)
    rows[:4] = [replace(row, trainer_logprobs_T=row.old_logprobs) for row in rows[:4]]
    expected = by.gradient(literal(policy, rows, 0.5, 1.0, fresh=8), policy)
    result, found = by.stepped(policy, rows, bound(policy, share=0.5), CONFIG, on_policy=True)
    assert by.relative(found, expected) < 1e-5
    assert result.added_loss > 0


def test_one_token_at_least() -> None:
    policy, rows = tiny.policy(), tiny.rows(groups=1, size=2, seed=1, longest=4)
    step = OptimizerStepView(rows, by.reader(policy), CONFIG)
    made = rule(step)
    assert made.num_chosen == 1
    assert made.term is not None
    strengths = np.concatenate([made.term.strengths[row.name] for row in rows])
    assert sorted(strengths.tolist())[-2:] == [0, 1]


def test_nothing_to_choose_from() -> None:
    assert rule(OptimizerStepView([])).term is None


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["credit.rule=kl_cov"], "set update.surrogate=unclipped"),
        (["credit.rule=kl_cov", "credit.rule_settings=['share=0']"], "share must be above 0"),
        (["credit.rule=kl_cov", "credit.rule_settings=['strength=-1']"], "0 or above"),
        (["credit.rule=kl_cov", "credit.rule_settings=['shar=1']"], "did you mean 'share'"),
    ],
)
def test_what_cannot_be_is_refused(sets: list[str], message: str) -> None:
    with pytest.raises(PoiseError, match=message):
        config_from_tables({}, sets)
