"""Each way to a masking effect against the update it stands for, written out."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import tiny
import torch

from counterpoise.microscope.batch_tokens import Snapshot, take_snapshot
from counterpoise.microscope.chosen_gradients import objective_gradient
from counterpoise.microscope.masking import (
    SOURCES,
    draw_masked_sets,
    first_order_effect,
    full_update_effects,
    is_low_confidence,
    output_layer_effects,
)
from counterpoise.microscope.output_layer import output_gradient
from counterpoise.microscope.pairs import kernel_rows
from counterpoise.microscope.parameter_kernel import parameter_kernel_row
from counterpoise.model.load import Policy
from counterpoise.model.scoring import forward
from counterpoise.types import Row

ETA = 0.1


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def scene(request) -> tuple[Policy, list[Row], Snapshot]:
    """In float64, with a vocabulary of few words so that tokens repeat."""
    policy = tiny.policy(tie_word_embeddings=request.param)
    policy.model.double()
    rows = [few_words(row) for row in tiny.rows(groups=4)]
    return policy, rows, take_snapshot(policy, rows)


def few_words(row: Row) -> Row:
    row.content.response_tokens[:] = row.content.response_tokens % 5 + 2
    return row


def where(seen: Snapshot, c: int) -> tuple[int, int]:
    return int(seen.rows[c]), int(seen.positions[c])


def literal_update(policy: Policy, rows: list[Row], masked: torch.Tensor, eta: float) -> Policy:
    """Another policy: one SGD step on eq. 2 with the masked tokens' losses set to zero."""
    other = tiny.policy(tie_word_embeddings=policy.model.config.tie_word_embeddings)
    other.model.double().load_state_dict(copy.deepcopy(policy.model.state_dict()))
    keep = torch.ones(sum(r.num_tokens for r in rows)).double()
    keep[masked] = 0
    advantages = torch.cat([torch.from_numpy(r.advantages_T) for r in rows]).double()
    optimizer = torch.optim.SGD(other.model.parameters(), lr=eta)
    loss = -(keep * advantages * forward(other, rows, 1.0).logprobs_M).sum() / len(keep)
    loss.backward()
    optimizer.step()
    return other


def test_output_layer_against_a_literal_update_of_a_copy_of_W(scene) -> None:
    policy, _, seen = scene
    W = policy.decoder.unembedding.detach().clone()
    median = seen.logprobs.exp().median().item()
    sets = list(draw_masked_sets(seen, 7, 6, np.random.default_rng(0), threshold=median).values())
    assert all(len(places) for places in sets)
    found = output_layer_effects(seen, W, output_gradient(seen, W), 7, sets, eta=2.0)
    for places, effect in zip(sets, found, strict=True):
        after = []
        for masked in (torch.empty(0).long(), places):
            copy_W = W.clone().requires_grad_()
            logprobs = torch.log_softmax(seen.hidden @ copy_W.T, dim=1)
            mine = logprobs.gather(1, seen.tokens[:, None]).squeeze(1)
            keep = torch.ones(len(seen)).double()
            keep[masked] = 0
            (-(keep * seen.advantages * mine).sum() / len(seen)).backward()
            moved = copy_W.detach() - 2.0 * copy_W.grad
            new = torch.log_softmax(moved @ seen.hidden[7], dim=0)
            after.append(new[seen.tokens[7]].item())
        assert effect == pytest.approx(after[0] - after[1], abs=1e-12)


def test_all_parameters_against_a_literal_masked_update(scene) -> None:
    policy, rows, seen = scene
    before = copy.deepcopy(policy.model.state_dict())
    c = 11
    drawn = draw_masked_sets(seen, c, 8, np.random.default_rng(1))
    sets = {source: drawn["random", source] for source in SOURCES}
    masked = {name: objective_gradient(policy, rows, places) for name, places in sets.items()}
    found = full_update_effects(
        policy, rows, where(seen, c), objective_gradient(policy, rows), masked, ETA
    )
    nothing = torch.empty(0).long()
    normal = forward(literal_update(policy, rows, nothing, ETA), rows, 1.0).logprobs_M[c]
    for name, places in sets.items():
        other = forward(literal_update(policy, rows, places, ETA), rows, 1.0).logprobs_M[c]
        assert found[name] == pytest.approx((normal - other).item(), abs=1e-10)
        assert abs(found[name]) > 1e-6
    for name, tensor in policy.model.state_dict().items():
        assert torch.equal(tensor, before[name])  # the weights were never written to


def test_first_order_has_the_sign_of_the_real_update_when_the_rate_is_small(scene) -> None:
    policy, rows, seen = scene
    normal, eta, agree = objective_gradient(policy, rows), 1e-3, []
    rng = np.random.default_rng(2)
    W = policy.decoder.unembedding.detach()
    G = output_gradient(seen, W)
    for c in rng.choice(len(seen), 8, replace=False).tolist():
        drawn = draw_masked_sets(seen, c, 5, rng)
        sets = {" ".join(key): places for key, places in drawn.items() if len(places)}
        K = parameter_kernel_row(policy, rows, where(seen, c))
        masked = {name: objective_gradient(policy, rows, places) for name, places in sets.items()}
        real = full_update_effects(policy, rows, where(seen, c), normal, masked, eta)
        head_K = kernel_rows(seen.hidden, W, seen.tokens, torch.tensor([c]))[0]
        head = output_layer_effects(seen, W, G, c, list(sets.values()), eta)
        for (name, places), of_head in zip(sets.items(), head, strict=True):
            agree += [
                np.sign(first_order_effect(K, seen.advantages, places, eta)) == np.sign(real[name]),
                np.sign(first_order_effect(head_K, seen.advantages, places, eta))
                == np.sign(of_head),
            ]
    assert np.mean(agree) >= 0.95


def test_first_order_converges_to_the_real_update(scene) -> None:
    policy, rows, seen = scene
    c, places = 4, torch.arange(8, 16)
    K = parameter_kernel_row(policy, rows, where(seen, c))
    normal, part = objective_gradient(policy, rows), objective_gradient(policy, rows, places)
    for eta in (1e-3, 1e-5):
        real = full_update_effects(policy, rows, where(seen, c), normal, {"m": part}, eta)["m"]
        assert first_order_effect(K, seen.advantages, places, eta) == pytest.approx(
            real, rel=100 * eta
        )


def test_masked_sets_keep_their_conditions_and_leave_the_candidate_out(scene) -> None:
    _, _, seen = scene
    median = seen.logprobs.exp().median().item()
    low = is_low_confidence(seen, median)
    for c in range(0, len(seen), 5):
        sets = draw_masked_sets(seen, c, 6, np.random.default_rng(c), threshold=median)
        again = draw_masked_sets(seen, c, 6, np.random.default_rng(c), threshold=median)
        for (condition, source), places in sets.items():
            assert places.tolist() == again[condition, source].tolist()
            assert c not in places.tolist()
            assert len(places) == len(set(places.tolist())) <= 6
            same, unsure = seen.tokens[places] == seen.tokens[c], low[places]
            if condition != "random":
                assert same.all() if condition in ("same", "both") else not same.any()
                assert unsure.all() if condition in ("low", "both") else not unsure.any()
            if source != "mixed":
                assert ((seen.advantages[places] > 0) == (source == "positive")).all()
        assert len(sets["random", "mixed"]) == 6


def test_nothing_masked_is_no_effect(scene) -> None:
    policy, rows, seen = scene
    W = policy.decoder.unembedding.detach()
    nothing = torch.empty(0, dtype=torch.long)
    assert output_layer_effects(seen, W, output_gradient(seen, W), 0, [nothing], ETA) == [0.0]
    part = objective_gradient(policy, rows, nothing)
    assert not any(tensor.any() for tensor in part.values())
    found = full_update_effects(
        policy, rows, (0, 0), objective_gradient(policy, rows), {"none": part}, ETA
    )
    assert found == {"none": 0.0}
    assert first_order_effect(torch.ones(len(seen)), seen.advantages, nothing, ETA) == 0.0
