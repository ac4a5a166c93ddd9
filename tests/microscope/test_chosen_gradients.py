from __future__ import annotations

import pytest
import tiny
import torch

from counterpoise.errors import PoiseError
from counterpoise.microscope.batch_tokens import Snapshot, take_snapshot
from counterpoise.microscope.chosen_gradients import (
    logprob_after_change,
    objective_gradient,
    weighted_sum,
)
from counterpoise.model.load import Policy
from counterpoise.model.scoring import forward
from counterpoise.model.swapped_weights import forward_with_weights
from counterpoise.types import Row


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def scene(request) -> tuple[Policy, list[Row], Snapshot]:
    policy = tiny.policy(tie_word_embeddings=request.param)
    policy.model.double()
    rows = tiny.rows(groups=4)
    return policy, rows, take_snapshot(policy, rows)


def test_parts_of_a_set_have_gradients_that_add_up(scene) -> None:
    policy, rows, seen = scene
    some, others = torch.arange(0, len(seen), 3), torch.arange(1, len(seen), 3)
    parts = [(1.0, objective_gradient(policy, rows, part)) for part in (some, others)]
    whole = objective_gradient(policy, rows, torch.cat((some, others)))
    for name, tensor in weighted_sum(parts).items():
        torch.testing.assert_close(tensor, whole[name])


def test_gradient_does_not_depend_on_micro_batches_or_on_cutting_rows(scene) -> None:
    policy, rows, seen = scene
    weights = list(policy.model.parameters())
    places = torch.tensor([0, 3, 20, len(seen) - 1])
    advantages = seen.advantages
    literal = torch.autograd.grad(
        (advantages[places] * forward(policy, rows, 1.0).logprobs_M[places]).sum() / len(seen),
        weights,
    )
    for micro_tokens in (1, 16384):
        found = objective_gradient(policy, rows, places, micro_tokens=micro_tokens)
        for tensor, expected in zip(found.values(), literal, strict=True):
            torch.testing.assert_close(tensor, expected)


def test_lent_weights_are_used_and_the_tables_keep_the_models_precision() -> None:
    policy, rows = tiny.policy(), tiny.rows()
    change = {name: torch.full_like(p, 0.01) for name, p in policy.model.named_parameters()}
    found = logprob_after_change(policy, rows[1], 2, change)
    moved = tiny.policy()
    with torch.no_grad():
        for p in moved.model.parameters():
            p += 0.01
    assert found == pytest.approx(forward(moved, [rows[1]], 1.0).logprobs_M[2].item(), abs=1e-4)
    assert forward(policy, rows, 1.0).logprobs_M.dtype == torch.float32
    exact = {name: p.double() for name, p in policy.model.named_parameters()}
    assert forward_with_weights(policy, exact, rows).logprobs_M.dtype == torch.float64


def test_cut_rows_have_the_same_log_probabilities(scene) -> None:
    policy, rows, _ = scene
    row = max(rows, key=lambda r: r.num_tokens)
    short = row.truncate(3)
    torch.testing.assert_close(
        forward(policy, [short], 1.0).logprobs_M, forward(policy, [row], 1.0).logprobs_M[:3]
    )
    with pytest.raises(PoiseError, match="no token 99"):
        logprob_after_change(policy, row, 99, {})
