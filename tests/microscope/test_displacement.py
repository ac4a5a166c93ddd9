"""Classes by the paper's threshold, and the update of nothing."""

from __future__ import annotations

import numpy as np
import pytest
import tiny

from counterpoise.config import UpdateConfig
from counterpoise.microscope.batch_tokens import take_snapshot
from counterpoise.microscope.displacement import (
    displacement_classes,
    displacement_shares,
    flipped_tokens,
    shares_by_sign,
)
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import StepSettings, take_step

DELTA = np.array([2e-6, 1e-6, 0.0, -1e-6, -2e-6, 0.5, -0.25])


def test_classes_by_the_papers_threshold() -> None:
    assert displacement_classes(DELTA).tolist() == [1, 0, 0, 0, -1, 1, -1]
    found = displacement_shares(DELTA)
    assert found is not None
    assert (found.boosted, found.suppressed, found.stable) == (2 / 7, 2 / 7, 3 / 7)
    assert found.mean_abs == pytest.approx(np.abs(DELTA).mean())
    assert displacement_shares(DELTA[:0]) is None


def test_what_was_not_measured_is_not_stable() -> None:
    unknown = np.full(7, np.nan)
    assert displacement_shares(unknown) is None
    assert displacement_shares(np.concatenate((DELTA, unknown))) == displacement_shares(DELTA)


def test_by_sign_and_flipped() -> None:
    A = np.array([1, 1, -1, -1, 1, -1, -1.0])
    found = shares_by_sign(DELTA, A)
    assert found["positive"].tokens == 3
    assert found["negative"].tokens == 4
    assert flipped_tokens(DELTA, A).tolist() == [False, False, False, False, True, True, False]
    assert shares_by_sign(DELTA, np.abs(A))["negative"] is None  # every reward right: one sign only


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_an_update_of_nothing_leaves_every_token_exactly_where_it_was(optimizer: str) -> None:
    policy, rows = tiny.policy(), tiny.rows()
    config = UpdateConfig(lr=0.0, optimizer=optimizer, micro_tokens=40)
    before = take_snapshot(policy, rows, micro_tokens=40).logprobs.numpy()
    take_step(
        policy,
        Optimizer(policy.model, config),
        rows,
        StepSettings(config, temperature=1.0, max_new_tokens=17),
    )
    after = take_snapshot(policy, rows, micro_tokens=40).logprobs.numpy()
    assert np.array_equal(before, after)
    assert displacement_shares(after - before).stable == 1.0
