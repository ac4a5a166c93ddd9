"""GRAIL against its formula, token by token with autograd."""

from __future__ import annotations

import math

import answered
import numpy as np
import pytest
import torch

from counterpoise.credit.grail import weights, weights_from_saliency
from counterpoise.errors import PoiseError

ROWS = answered.rows()
FIRST = [(7, 9, 10, 11), (12, 14, 17, 18), None, (0, 2, 3, 4), (3, 5, 6, 7), (9, 11, 13, 14),
         (1, 3, 4, 5), None]  # mark, start, end, close of the first box  # fmt: skip


def reference(
    policy, row, box, which: str, temperature: float, *, released: bool = False
) -> list[float]:
    if box is None:
        return [1.0] * row.num_tokens
    mark, start, end, close = box
    ids, S = answered.ids(row), len(row.content.prompt_tokens)
    w = [1.0] * row.num_tokens
    if which == "both" or (row.advantage > 0) == (which == "correct"):
        e = policy.decoder.embedding(ids).detach()
        scores = []
        # Released: token t by the input before it, and every token in mean and variance.
        shift, last = (1, row.num_tokens) if released else (0, close - 1)
        for t in range(-shift, last - shift):
            leaf = e[S + t].clone().requires_grad_()
            whole = torch.cat((e[: S + t], leaf[None], e[S + t + 1 :]))
            hidden = answered.hidden(policy, row, whole)
            loss = torch.zeros((), dtype=torch.float64)
            for k in range(mark, close):
                logits = policy.decoder.unembedding @ hidden[S + k - 1] / temperature
                loss = loss - torch.log_softmax(logits, dim=-1)[ids[S + k]]
            loss.backward()
            grad = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
            squares = [float(g * x) ** 2 for g, x in zip(grad, e[S + t], strict=True)]
            scores.append(math.log(math.sqrt(sum(squares)) + 1e-8))
        mean = sum(scores) / len(scores)
        variance = sum((x - mean) ** 2 for x in scores) / len(scores)
        for t, x in enumerate(scores):
            w[t] = min(max(1 + 0.5 * (x - mean) / math.sqrt(variance + 1e-8), 0.5), 5.0)
    for t in range(mark, row.num_tokens):
        w[t] = 5.0 if start <= t < end else 1.0
    return w


@pytest.mark.parametrize("which", ["wrong", "correct", "both"])
def test_against_the_formula(which: str) -> None:
    policy = answered.policy()
    found = weights(answered.view(policy, ROWS, tokens=50), which=which)
    for row, box, w_T in zip(ROWS, FIRST, found, strict=True):
        expected = reference(policy, row, box, which, 0.8)
        assert w_T.dtype == np.float32
        np.testing.assert_allclose(w_T, expected, rtol=1e-4, atol=1e-4)


def test_the_indexing_of_the_released_code() -> None:
    policy = answered.policy()
    view = answered.view(policy, ROWS, tokens=50)
    plain, found = (weights(view, which="both", released_indexing=x) for x in (False, True))
    for row, box, w_T in zip(ROWS, FIRST, found, strict=True):
        expected = reference(policy, row, box, "both", 0.8, released=True)
        np.testing.assert_allclose(w_T, expected, rtol=1e-4, atol=1e-4)
    assert np.abs(found[1][:12] - plain[1][:12]).max() > 0.1  # the setting matters


def test_by_hand() -> None:
    s = np.array([1.0, math.e**2, 1.0, math.e**2, 0.0, 0.0], dtype=np.float32)
    # logs 0, 2, 0, 2 over the four that count: mean 1, deviation 1
    np.testing.assert_allclose(
        weights_from_saliency(s, 4, 0.5, 1.0, 0.1, 5.0)[:4], [0.5, 1.5, 0.5, 1.5], rtol=1e-6
    )
    np.testing.assert_allclose(
        weights_from_saliency(s, 4, 9.0, 1.0, 0.5, 5.0)[:4], [0.5, 5.0, 0.5, 5.0]
    )


def test_equal_sensitivity_and_nothing_before_the_box() -> None:
    flat = np.full(5, 0.3, dtype=np.float32)
    np.testing.assert_allclose(weights_from_saliency(flat, 5, 0.5, 1.0, 0.5, 5.0), 1.0, atol=1e-6)
    assert weights_from_saliency(np.zeros(2, np.float32), 0, 0.5, 1.0, 0.5, 5.0).tolist() == [
        1.0,
        1.0,
    ]


def test_without_a_box_every_weight_is_one() -> None:
    policy = answered.policy()
    found = weights(answered.view(policy, [ROWS[2], ROWS[7]]), which="both")
    assert [w_T.tolist() for w_T in found] == [[1.0] * 6, [1.0]]
    assert weights(answered.view(policy, [])) == []


def test_the_box_of_other_rollouts_is_weighed_too() -> None:
    found = weights(answered.view(answered.policy(), ROWS[:1]), high=3.0, mean=0.9)
    assert found[0].tolist() == [1.0] * 7 + [np.float32(0.9)] * 2 + [3.0] + [np.float32(0.9)] * 2


def test_an_unknown_kind() -> None:
    with pytest.raises(PoiseError, match="did you mean 'wrong'"):
        weights(answered.view(answered.policy(), ROWS), which="wrnog")


@pytest.mark.parametrize(
    "settings", [{"low": 6.0}, {"spread": np.nan}, {"mean": 0.4}, {"high": np.inf}]
)
def test_numbers_that_contradict_each_other(settings: dict[str, float]) -> None:
    with pytest.raises(PoiseError, match=r"^grail: set spread to 0 or above and 0 <= low <= mean"):
        weights(answered.view(answered.policy(), []), **settings)
