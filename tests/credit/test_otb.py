"""OTB: the baseline of every position from gradients by autograd, and its edges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import one_by_one
import pytest
import tiny
import torch
from one_by_one import made

from counterpoise.config.load import load_config
from counterpoise.credit.otb import weights
from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.errors import PoiseError
from counterpoise.types import Row
from counterpoise.variants import ADVANTAGES

POLICY = tiny.policy()
REWARDS = [1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1]


def rows_with_credit(credit: str) -> list[Row]:
    rows = tiny.rows(groups=3, size=4, seed=5, longest=8)
    advantages = np.concatenate(
        [ADVANTAGES.load(credit)(np.array(REWARDS[g : g + 4], float)) for g in (0, 4, 8)]
    )
    return [
        replace(row, advantage=float(a), rollout=replace(row.content, reward=float(r)))
        for row, a, r in zip(rows, advantages, REWARDS, strict=True)
    ]


def squared_norms(row: Row, temperature: float) -> list[float]:
    """|d log pi(o_t) / d logits|^2 of every token, by autograd in float64."""
    prompt, response = row.content.prompt_tokens, row.content.response_tokens
    ids = torch.from_numpy(np.concatenate((prompt, response))).long()
    with torch.no_grad():
        hidden = POLICY.model.model(ids[None]).last_hidden_state[0].double()
    W = POLICY.decoder.unembedding.detach().double()
    norms = []
    for t, token in enumerate(response.tolist()):
        logits = (hidden[len(prompt) + t - 1] @ W.T / temperature).requires_grad_()
        (gradient,) = torch.autograd.grad(torch.log_softmax(logits, 0)[token], logits)
        norms.append(float(gradient @ gradient))
    return norms


def by_definition(rows: list[Row], temperature: float) -> list[list[float]]:
    """r_i - B_t with loops over the rollouts that have a token t."""
    norms = [squared_norms(row, temperature) for row in rows]
    advantages = []
    for row in rows:
        group = [k for k, other in enumerate(rows) if other.group == row.group]
        row_advantages = []
        for t in range(row.num_tokens):
            numerator = denominator = 0.0
            for k in group:
                if t < rows[k].num_tokens:
                    energy = sum(norms[k][: t + 1])
                    numerator += rows[k].content.reward * energy
                    denominator += energy
            row_advantages.append(row.content.reward - numerator / denominator)
        advantages.append(row_advantages)
    return advantages


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_with_dr_grpo_it_is_the_method(temperature: float) -> None:
    rows = rows_with_credit("dr_grpo")
    view = CreditView(rows, PolicyReader(POLICY, temperature))
    for row, weights_T, expected in zip(
        rows, weights(view), by_definition(rows, temperature), strict=True
    ):
        np.testing.assert_allclose(row.advantage * weights_T, expected, atol=2e-6)
        assert (weights_T > -1e-6).all()  # rewards of two values: no sign flips


def test_with_grpo_it_has_the_scale_of_grpo() -> None:
    plain, scaled = (
        weights(CreditView(rows_with_credit(name), PolicyReader(POLICY)))
        for name in ("dr_grpo", "grpo")
    )
    for plain_T, scaled_T in zip(plain, scaled, strict=True):
        np.testing.assert_allclose(plain_T, scaled_T, atol=1e-6)


def test_equal_beginnings_keep_the_mean_and_the_last_rollout_has_no_one_to_compare_with() -> None:
    rows = [made("g", 0, 0.5, [7, 8, 9]), made("g", 1, -0.5, [7, 8])]
    right_T, wrong_T = weights(CreditView(rows, PolicyReader(POLICY)))
    assert right_T.tolist() == pytest.approx([1, 1, 0], abs=1e-6)
    assert wrong_T.tolist() == pytest.approx([1, 1], abs=1e-6)
    assert weights(CreditView([], None)) == []


def test_advantages_without_a_baseline_are_refused() -> None:
    with pytest.raises(PoiseError, match=r"set credit\.name=dr_grpo"):
        load_config("demo", ["credit.weights=otb", "credit.name=w_reinforce"])
    assert load_config("demo", ["credit.weights=otb"]).credit.weights == "otb"


def test_squared_norms_are_the_printed_formula() -> None:
    row = tiny.rows(groups=1, size=1, seed=5, shortest=4)[0]
    kernel = one_by_one.gradients(POLICY, row, 1.0)  # d log pi / dW = r h^T
    ids = torch.from_numpy(np.concatenate((row.content.prompt_tokens, row.content.response_tokens)))
    with torch.no_grad():
        hidden = POLICY.model.model(ids[None].long()).last_hidden_state[0].double()
    start = len(row.content.prompt_tokens) - 1
    for t, norm in enumerate(squared_norms(row, 1.0)):
        expected = norm * float(hidden[start + t] @ hidden[start + t])
        assert float(kernel[t].square().sum()) == pytest.approx(expected, rel=1e-9)
