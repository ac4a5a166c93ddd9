from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch

from counterpoise.config import UpdateConfig
from counterpoise.microscope.coupling import decompose
from counterpoise.microscope.displacement import shares_by_sign
from counterpoise.microscope.polarity import measure_polarity, without_negative_advantages
from counterpoise.model.load import Policy
from counterpoise.model.swapped_weights import restored_weights
from counterpoise.types import Row
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import StepSettings, take_step


def step(policy: Policy, lr: float, optimizer: str = "sgd"):
    """One step on eq. 2 by the trainer itself."""
    options = UpdateConfig(
        optimizer=optimizer, lr=lr, warmup_steps=0, max_grad_norm=0.0, surrogate="reinforce"
    )

    def update(rows: list[Row]) -> None:
        take_step(
            policy,
            Optimizer(policy.model, options),
            rows,
            StepSettings(options, temperature=1.0, max_new_tokens=32),
        )

    return update


def test_an_update_of_nothing_moves_nothing() -> None:
    policy, rows = tiny.policy(), tiny.rows()
    found = measure_polarity(policy, rows, lambda _: None)
    assert not found.positive.any()
    assert not found.joint.any()


def test_weights_come_back_bit_by_bit_even_after_a_fault() -> None:
    policy, rows = tiny.policy(), tiny.rows()
    before = [p.detach().clone() for p in policy.model.parameters()]
    found = measure_polarity(policy, rows, step(policy, 0.1, "adamw"))
    assert found.joint.abs().max() > 1e-3
    with pytest.raises(RuntimeError), restored_weights(policy.model):
        spoil(policy)
    for p, was in zip(policy.model.parameters(), before, strict=True):
        assert torch.equal(p, was)


def spoil(policy: Policy) -> None:
    next(policy.model.parameters()).data.zero_()
    raise RuntimeError


def test_positive_only_is_the_same_batch_with_failures_at_zero() -> None:
    rows = tiny.rows()
    kept = without_negative_advantages(rows)
    assert len(kept) == len(rows)
    for row, was in zip(kept, rows, strict=True):
        assert row.advantage == max(was.advantage, 0.0)
        assert row.rollout is was.rollout
        assert row.num_tokens == was.num_tokens


def test_both_updates_start_from_the_same_weights_and_differ_by_the_negative_rows() -> None:
    """To first order joint = positive-only + negative-only, over one common denominator."""
    policy, rows = tiny.policy(), tiny.rows()
    negated = [r if r.advantage < 0 else tiny_zero(r) for r in rows]
    found = measure_polarity(policy, rows, step(policy, 1e-4))
    only_negative = measure_polarity(policy, rows, lambda _: step(policy, 1e-4)(negated)).joint
    scale = found.joint.abs().max().item()
    torch.testing.assert_close(
        found.positive + only_negative, found.joint, rtol=0.02, atol=0.02 * scale
    )


def tiny_zero(row: Row) -> Row:
    return Row(row.group, 0.0, row.num_tokens, index=row.index, rollout=row.rollout)


def test_displacement_covers_tokens_that_did_not_push() -> None:
    policy, rows = tiny.policy(), tiny.rows()
    found = measure_polarity(policy, rows, step(policy, 0.05))
    assert len(found.positive) == len(found.joint) == sum(r.num_tokens for r in rows)
    shares = shares_by_sign(found.positive.numpy(), found.before.advantages.numpy())
    assert shares["negative"] is not None
    assert shares["negative"].stable < 0.5  # failures are moved by what successes teach
    silent = found.before.advantages < 0
    proxy = decompose(
        found.before.hidden,
        policy.decoder.unembedding.detach(),
        found.before.tokens,
        found.before.advantages.clamp(min=0),
        found.before.groups,
    )
    assert np.isclose(proxy.self_push[silent].abs().max().item(), 0)
