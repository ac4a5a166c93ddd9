"""One optimizer step and the faults it survives: nothing moves unless everything is finite."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

from counterpoise.config import UpdateConfig
from counterpoise.config.load import config_from_tables
from counterpoise.errors import PoiseError
from counterpoise.loop import MAX_SKIPPED_STEPS, update
from counterpoise.model.load import Policy
from counterpoise.model.scoring import micro_batches, score_logprobs
from counterpoise.run.state import RunState, new_state
from counterpoise.types import BatchPlan, Row
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import StepSettings, accumulate_gradient, take_step

CONFIG = UpdateConfig(lr=0.01)
KEYS = {"temperature": 1.0, "max_new_tokens": 24}


def weights(policy: Policy) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in policy.model.parameters()])


def scored(rows: list[Row], old: float) -> list[Row]:
    return [replace(r, trainer_logprobs_T=np.full(r.num_tokens, old, np.float32)) for r in rows]


def silent(rows: list[Row]) -> list[Row]:
    return [replace(r, advantage=0.0) for r in rows]


# Ratios of exp(900) are infinite. Loss: a wrong token's unbounded loss. Gradient: a right token's
# loss is bounded, but its gradient is 0 * infinity.
NOT_FINITE = {
    "loss": [replace(r, advantage=-1.0) for r in scored(tiny.rows(groups=1), -900.0)],
    "gradient": [replace(r, advantage=1.0) for r in scored(tiny.rows(groups=1), -900.0)],
    "advantage": [replace(r, advantage=math.nan) for r in tiny.rows(groups=1)],
}


@pytest.mark.parametrize("fault", NOT_FINITE)
@pytest.mark.parametrize("optimizer_name", ["adamw", "sgd"])
def test_what_is_not_finite_changes_nothing(fault: str, optimizer_name: str) -> None:
    config = replace(CONFIG, optimizer=optimizer_name, weight_decay=0.1)
    policy, rows = tiny.policy(), tiny.rows()
    optimizer = Optimizer(policy.model, config)
    take_step(policy, optimizer, rows, StepSettings(config, **KEYS))
    before, state = weights(policy), {k: v.clone() for k, v in optimizer.state().items()}
    result = take_step(policy, optimizer, NOT_FINITE[fault], StepSettings(config, **KEYS))
    assert result.skipped == "not finite"
    assert math.isfinite(result.loss) == (fault == "gradient")
    assert not math.isfinite(result.grad_norm)
    assert torch.equal(weights(policy), before)
    after = optimizer.state()
    assert after.keys() == state.keys()
    assert all(torch.equal(after[name], state[name]) for name in state)
    assert all(p.grad is None for p in policy.model.parameters())


def test_the_next_step_is_as_if_the_bad_one_had_never_been() -> None:
    ends = []
    for bad in (False, True):
        policy = tiny.policy()
        optimizer = Optimizer(policy.model, CONFIG)
        take_step(policy, optimizer, tiny.rows(seed=1), StepSettings(CONFIG, **KEYS))
        if bad:
            take_step(policy, optimizer, NOT_FINITE["gradient"], StepSettings(CONFIG, **KEYS))
        take_step(policy, optimizer, tiny.rows(seed=2), StepSettings(CONFIG, **KEYS))
        ends.append(weights(policy))
    assert torch.equal(*ends)


def test_one_bad_row_spoils_its_step_only() -> None:
    policy = tiny.policy()
    optimizer = Optimizer(policy.model, CONFIG)
    result = take_step(
        policy,
        optimizer,
        tiny.rows() + NOT_FINITE["loss"][:1],
        StepSettings(replace(CONFIG, micro_tokens=1), **KEYS),
    )
    assert result.skipped == "not finite"


def test_a_step_without_signal_is_skipped() -> None:
    """Weight decay and Adam's momentum would move weights even where no row says anything."""
    config = replace(CONFIG, weight_decay=0.1)
    policy, rows = tiny.policy(), tiny.rows()
    optimizer = Optimizer(policy.model, config)
    take_step(policy, optimizer, rows, StepSettings(config, **KEYS))
    before = weights(policy)
    result = take_step(policy, optimizer, silent(rows), StepSettings(config, **KEYS))
    assert result.skipped == "no signal"
    assert (result.rows, result.loss, result.grad_norm) == ((), 0.0, 0.0)
    assert result.tokens == sum(r.num_tokens for r in rows)
    assert torch.equal(weights(policy), before)
    assert optimizer.steps == 1


def test_token_weights_of_zero_are_no_signal() -> None:
    policy = tiny.policy()
    rows = [replace(r, weights_T=np.zeros(r.num_tokens, np.float32)) for r in tiny.rows()]
    result = take_step(policy, Optimizer(policy.model, CONFIG), rows, StepSettings(CONFIG, **KEYS))
    assert result.skipped == "no signal"


def test_a_small_step_raises_right_tokens_and_lowers_wrong_ones() -> None:
    policy, rows = tiny.policy(), tiny.rows(groups=2, size=2, seed=3)
    config = replace(CONFIG, optimizer="sgd", lr=1e-3, surrogate="reinforce", max_grad_norm=0.0)
    before = score_logprobs(policy, rows, 1.0, 10_000)
    result = take_step(policy, Optimizer(policy.model, config), rows, StepSettings(config, **KEYS))
    after = score_logprobs(policy, rows, 1.0, 10_000)

    def objective(logprobs: list[np.ndarray]) -> float:
        tokens = sum(r.num_tokens for r in rows)
        return sum(r.advantage * x.sum() for r, x in zip(rows, logprobs, strict=True)) / tokens

    gain = objective(after) - objective(before)
    assert result.skipped == ""
    assert gain == pytest.approx(1e-3 * result.grad_norm**2, rel=0.1)  # first order in lr


def test_what_was_scored_on_policy_has_ratio_one() -> None:
    policy = tiny.policy()
    rows = tiny.rows()
    old = score_logprobs(policy, rows, 0.7, 10_000)
    rows = [replace(r, trainer_logprobs_T=x) for r, x in zip(rows, old, strict=True)]
    result = accumulate_gradient(
        policy, rows, StepSettings(CONFIG, temperature=0.7, max_new_tokens=24)
    )
    for now, then in zip(result.logprobs, result.old_logprobs, strict=True):
        np.testing.assert_allclose(now, then, atol=1e-5)
    assert result.clipped_share == 0.0
    assert math.isnan(result.grad_norm)  # nobody has taken it yet


# -- micro-batches ------------------------------------------------------------------------------


@pytest.mark.parametrize("micro_tokens", [1, 10, 30, 100, 10_000])
def test_micro_batches_hold_every_row_once_and_keep_to_their_size(micro_tokens: int) -> None:
    rows = tiny.rows(groups=5, size=4, seed=7)
    batches = list(micro_batches(rows, micro_tokens))
    assert sorted(i for batch in batches for i in batch) == list(range(len(rows)))
    for batch in batches:
        prompts = {rows[i].group: len(rows[i].content.prompt_tokens) for i in batch}
        tokens = sum(rows[i].num_tokens for i in batch) + sum(prompts.values())
        assert tokens <= micro_tokens or len(batch) == 1
    if micro_tokens == 10_000:
        assert len(batches) == 1
    if micro_tokens == 1:
        assert len(batches) == len(rows)


# -- five in a row ------------------------------------------------------------------------------

RUN = config_from_tables({"update": {"lr": 0.01}})
GOOD, BAD, SILENT = tiny.rows(groups=1), NOT_FINITE["gradient"], silent(tiny.rows(groups=1))


@pytest.fixture
def state() -> RunState:
    return new_state(tiny.policy(), RUN)


def take(state: RunState, kinds: str) -> list[str]:
    """A plan of good (g), bad (b) and silent (s) steps; what each was skipped for."""
    batch: list[Row] = []
    steps = []
    for kind in kinds:
        rows = {"g": GOOD, "b": BAD, "s": SILENT}[kind]
        steps.append(tuple(range(len(batch), len(batch) + len(rows))))
        batch += rows
    return [r.skipped for r in update(state, batch, BatchPlan("test", tuple(steps)), RUN)]


def test_five_in_a_row_stop_the_run(state: RunState) -> None:
    assert MAX_SKIPPED_STEPS == 5
    before = weights(state.policy)
    with pytest.raises(
        PoiseError,
        match=r"5 optimizer steps in a row .* not finite: start a new run with a lower update\.lr",
    ):
        take(state, "bbbbb")
    assert torch.equal(weights(state.policy), before)


def test_four_in_a_row_do_not(state: RunState) -> None:
    assert take(state, "bbbbgbbbb") == ["not finite"] * 4 + [""] + ["not finite"] * 4
    assert state.skipped_in_a_row == 4


def test_iterations_do_not_interrupt_the_row(state: RunState) -> None:
    take(state, "bbb")
    assert state.skipped_in_a_row == 3
    take(state, "b")
    with pytest.raises(PoiseError, match="5 optimizer steps in a row"):
        take(state, "b")


def test_a_step_that_was_never_tried_does_not_interrupt_it_either(state: RunState) -> None:
    take(state, "bbsb")
    assert state.skipped_in_a_row == 3


def test_results_speak_of_the_rows_of_the_batch(state: RunState) -> None:
    batch = GOOD + SILENT + GOOD
    n = len(GOOD)
    plan = BatchPlan("test", (tuple(range(2 * n, 3 * n)), (n, 0, n + 1, 1), (2, 3)))
    results = update(state, batch, plan, RUN)
    assert [r.rows for r in results] == [tuple(range(2 * n, 3 * n)), (0, 1), (2, 3)]
    assert results[1].tokens == sum(batch[i].num_tokens for i in plan.steps[1])
    for result in results:
        for row, logprobs in zip(result.rows, result.logprobs, strict=True):
            assert len(logprobs) == batch[row].num_tokens
