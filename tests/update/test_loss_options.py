"""The options of the loss, each against its formula written with whole logits, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from counterpoise.config import UpdateConfig
from counterpoise.credit.assign import assign_advantages
from counterpoise.model.load import Policy
from counterpoise.model.scoring import forward
from counterpoise.types import Group, Row, StepResult
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import StepSettings, accumulate_gradient, take_step

TEMPERATURE, MAX_NEW = 0.8, 20
DENOMINATORS = {
    "token_mean": lambda row, rows: sum(r.num_tokens for r in rows if not r.masked),
    "sequence_mean": lambda row, rows: len(rows) * row.num_tokens,
    "constant": lambda row, rows: len(rows) * MAX_NEW,
    "group_token_mean": lambda row, rows: (
        len({r.group for r in rows})
        * sum(r.num_tokens for r in rows if r.group == row.group and not r.masked)
    ),
}


def double_policy() -> Policy:
    policy = tiny.policy()
    policy.model.double()
    return policy


def make_rows() -> list[Row]:
    """Rows far off the policy, two of them without an advantage, with a reference of noise."""
    rng = np.random.default_rng(3)
    rows = tiny.rows(seed=2, longest=9, off_policy=1.5)
    rows = [
        replace(
            row,
            reference_logprobs_T=(row.old_logprobs + rng.normal(size=row.num_tokens)).astype("f4"),
            trainer_logprobs_T=(row.old_logprobs + rng.normal(size=row.num_tokens)).astype("f4"),
        )
        for row in rows
    ]
    for i in (1, 6):
        rows[i] = replace(rows[i], advantage=0.0)
    return rows


def token_losses(new: Tensor, entropy: Tensor, row: Row, config: UpdateConfig) -> Tensor:
    """The loss of a row's tokens [T], as the options' formulas say."""
    old, sampled = row.old_logprobs.astype(float), row.content.sampled_logprobs.astype(float)
    losses = []
    for t, A in enumerate(row.advantages_T.astype(float)):
        ratio = (new[t] - old[t]).exp()
        if config.surrogate == "dppo":
            moved = float(new[t].detach().exp()) - float(np.exp(old[t]))
            kept = moved <= config.clip_high if A > 0 else moved >= -config.clip_low
            loss = -ratio * A * kept
        elif config.surrogate == "drpo":
            delta = config.clip_high if A > 0 else config.clip_low
            loss = -(ratio * A - abs(A) / (2 * delta) * float(np.exp(old[t])) * (ratio - 1) ** 2)
        else:
            if config.surrogate == "gspo":
                mean = (new.detach() - torch.from_numpy(old)).mean()
                ratio = mean.exp() * (new[t] - new[t].detach()).exp()
            bounded = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
            loss = torch.maximum(-A * ratio, -A * bounded)
            if A < 0 and config.clip_dual:
                loss = torch.minimum(loss, torch.tensor(-A * config.clip_dual))
        if config.importance == "token":
            weight = float(np.exp(old[t] - sampled[t]))
            above = {"truncate": config.importance_cap, "mask": 0.0}[config.importance_mode]
            loss = loss * (weight if weight <= config.importance_cap else above)
        if config.kl_in_loss:
            d = new[t] - float(row.reference_logprobs_T[t])
            kl = {"k1": d, "k2": d * d / 2, "k3": (-d).exp() - 1 + d}[config.kl_estimator]
            loss = loss + config.kl * kl
        losses.append(loss - config.entropy_bonus * entropy[t])
    return torch.stack(losses)


def plain(policy: Policy, rows: Sequence[Row], config: UpdateConfig) -> tuple[float, Tensor]:
    """Loss and gradient from whole log-distributions, row by row, by autograd."""
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        if row.masked:
            continue
        hidden = forward(policy, [row], TEMPERATURE).hidden_M
        logits = hidden @ policy.decoder.unembedding.T / TEMPERATURE
        everything = torch.log_softmax(logits, dim=-1)
        tokens = torch.from_numpy(row.content.response_tokens.astype(np.int64))
        new = everything.gather(1, tokens[:, None])[:, 0]
        entropy = -(everything.exp() * everything).sum(-1)
        denominator = DENOMINATORS[config.aggregate](row, rows)
        total = total + token_losses(new, entropy, row, config).sum() / denominator
    gradient = torch.autograd.grad(total, list(policy.model.parameters()))
    return float(total.detach()), torch.cat([g.flatten() for g in gradient])


def ours(policy: Policy, rows: Sequence[Row], config: UpdateConfig) -> tuple[StepResult, Tensor]:
    policy.model.zero_grad(set_to_none=True)
    settings = StepSettings(config, temperature=TEMPERATURE, max_new_tokens=MAX_NEW)
    result = accumulate_gradient(policy, rows, settings)
    return result, torch.cat([p.grad.flatten() for p in policy.model.parameters()])


CASES = {
    "k1": UpdateConfig(kl=0.3, kl_estimator="k1"),
    "k2": UpdateConfig(kl=0.3, kl_estimator="k2", aggregate="constant"),
    "k3": UpdateConfig(kl=0.3, aggregate="sequence_mean"),
    "entropy": UpdateConfig(entropy_bonus=0.2, aggregate="group_token_mean"),
    "kl, entropy and weights": UpdateConfig(
        kl=0.1, entropy_bonus=0.1, importance="token", importance_mode="mask"
    ),
    "dual clip": UpdateConfig(clip_dual=1.5),
    "dual clip of gspo": UpdateConfig(surrogate="gspo", clip_dual=1.29),
    "dppo": UpdateConfig(surrogate="dppo", clip_low=0.004, clip_high=0.01),
    "drpo": UpdateConfig(surrogate="drpo", clip_low=0.004, clip_high=0.01),
    "truncated weights": UpdateConfig(importance="token"),
    "masked weights": UpdateConfig(importance="token", importance_mode="mask"),
}


@pytest.mark.parametrize("case", CASES)
def test_value_gradient_and_splits(case: str) -> None:
    policy, rows, config = double_policy(), make_rows(), CASES[case]
    result, gradient = ours(policy, rows, config)
    loss, expected = plain(policy, rows, config)
    assert result.loss == pytest.approx(loss, rel=1e-10, abs=1e-12)
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-10)
    split, again = ours(policy, rows, replace(config, micro_tokens=20))
    torch.testing.assert_close(again, expected, rtol=1e-10, atol=1e-10)
    assert split.kl == pytest.approx(result.kl) if config.kl else split.kl is None
    # The option must have mattered.
    _, without = ours(policy, rows, UpdateConfig(aggregate=config.aggregate))
    assert (without - expected).norm() > 1e-3 * expected.norm()
    assert 0 < result.clipped_share < 1 or config.surrogate == "drpo"  # it never clips
    if config.importance == "token":
        assert 0 < result.capped_share < 1


def test_rows_without_an_advantage_take_part_in_a_kl_and_a_bonus_only() -> None:
    policy, rows = double_policy(), make_rows()
    plain_result, _ = ours(policy, rows, UpdateConfig())
    assert set(range(len(rows))) - set(plain_result.rows) == {1, 6}
    for config in (UpdateConfig(kl=0.1), UpdateConfig(entropy_bonus=0.1)):
        assert ours(policy, rows, config)[0].rows == tuple(range(len(rows)))


def test_a_step_without_any_advantage_is_taken_for_its_kl() -> None:
    rows = [replace(row, advantage=0.0) for row in make_rows()]
    for kl, reason in ((0.0, "no signal"), (0.1, "")):
        policy, config = tiny.policy(), UpdateConfig(kl=kl, lr=1e-3)
        before = policy.model.lm_head.weight.detach().clone()
        settings = StepSettings(config, temperature=1.0, max_new_tokens=MAX_NEW)
        result = take_step(policy, Optimizer(policy.model, config), rows, settings)
        assert result.skipped == reason
        assert torch.equal(before, policy.model.lm_head.weight) == bool(reason)


@pytest.mark.parametrize("aggregate", DENOMINATORS)
def test_masked_responses_leave_the_loss_and_the_token_counts(aggregate: str) -> None:
    """Rows 0 and 5 are masked, and with 9 to 11 almost the whole of the last group."""
    policy, rows = double_policy(), make_rows()
    for i in (0, 5, 9, 10, 11):
        rows[i] = replace(rows[i], advantage=0.0, masked=True)
    config = UpdateConfig(kl=0.1, aggregate=aggregate)
    result, gradient = ours(policy, rows, config)
    loss, expected = plain(policy, rows, config)
    assert result.loss == pytest.approx(loss, rel=1e-10)
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-10)
    assert set(range(12)) - set(result.rows) == {0, 5, 9, 10, 11}
    assert result.tokens == sum(row.num_tokens for row in rows if not row.masked)


def test_a_truncated_response_counts_in_the_baseline_only() -> None:
    rollouts = [
        replace(row.content, reward=reward, finished=finished)
        for row, reward, finished in zip(
            tiny.rows(groups=1), (1.0, 0.0, 0.0, 1.0), (True, True, False, False), strict=True
        )
    ]
    group = Group("g", 1, tuple(rollouts))
    ((*whole,),), ((*masked,),) = (
        assign_advantages([group], "rloo"),
        assign_advantages([group], "rloo", mask_truncated=True),
    )
    assert [row.masked for row in masked] == [False, False, True, True]
    assert [row.advantage for row in masked] == [whole[0].advantage, whole[1].advantage, 0.0, 0.0]
    assert [row.loss_tokens for row in masked[2:]] == [0, 0]
    assert whole[0].advantage == pytest.approx(1 - 1 / 3)
