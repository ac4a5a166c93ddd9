"""OAR-G against its formula: clean and disturbed passes alone, autograd one token at a time."""

from __future__ import annotations

import answered
import numpy as np
import pytest
import torch

from counterpoise.credit.answer_spans import locate_answers
from counterpoise.credit.bilevel import reshape_importance
from counterpoise.credit.divergence import kl_divergence, kl_gradient, mean_states
from counterpoise.credit.oar_g import gradient_importance, weights
from counterpoise.errors import PoiseError
from counterpoise.seeds import seed_for

ROWS = answered.rows()


def reference(policy, row, box, compare: str, noise: torch.Tensor) -> list[float]:
    """`noise` [mark, D]"""
    ids, S, W = answered.ids(row), len(row.content.prompt_tokens), policy.decoder.unembedding
    e = policy.decoder.embedding(ids).detach()
    moved = e.clone()
    moved[S : S + box.box_start] += noise
    end = box.content_start + 1 if compare == "last" else box.content_end

    def logits(embedded):
        return answered.hidden(policy, row, embedded)[S + box.content_start - 1 : S + end - 1] @ W.T

    def phi(embedded):
        logprobs = torch.log_softmax(logits(embedded), dim=-1)
        return logprobs.gather(1, ids[S + box.content_start : S + end, None]).mean()

    with torch.no_grad():
        P0 = torch.softmax(logits(e).mean(dim=0), dim=-1)
        phi0 = phi(e)
    found = []
    for t in range(box.box_start):
        leaf = moved[S + t].clone().requires_grad_()
        whole = torch.cat((moved[: S + t], leaf[None], moved[S + t + 1 :]))
        if compare == "answer_joint":
            J = phi0 - phi(whole)
        else:
            J = (P0 * ((P0 + 1e-12).log() - torch.log_softmax(logits(whole).mean(0), -1))).sum()
        J.backward()
        found.append(abs(float((leaf.grad * e[S + t]).sum())))
    return found


def noise_of(policy, boxes, size: float) -> dict[int, torch.Tensor]:
    """One draw for the reasoning of all rows, row after row."""
    generator = torch.Generator().manual_seed(seed_for(5, "oar_g", 3))
    marks = [box.box_start for box in boxes.values()]
    D, dtype = policy.decoder.embedding.weight.shape[1], policy.decoder.dtype
    values = size * torch.randn(sum(marks), D, generator=generator, dtype=dtype)
    return dict(zip(boxes, values.split(marks), strict=True))


@pytest.mark.parametrize("compare", ["answer_mean", "last", "answer_joint"])
@pytest.mark.parametrize("noise", [1e-3, 0.1])
def test_importance_against_the_formula(compare: str, noise: float) -> None:
    policy = answered.policy()
    view = answered.view(policy, ROWS, tokens=50)
    boxes = {i: box for i, box in enumerate(locate_answers(view)) if box and box.box_start}
    found = dict(gradient_importance(view, boxes, compare, noise))
    assert sorted(found) == [0, 1, 4, 5, 6]
    drawn = noise_of(policy, boxes, noise)
    for i, box in boxes.items():
        expected = reference(policy, ROWS[i], box, compare, drawn[i])
        np.testing.assert_allclose(found[i][: box.box_start], expected, rtol=2e-3, atol=1e-7)


def test_weights_are_the_reshaped_importance_of_reasoning() -> None:
    policy = answered.policy()
    view = answered.view(policy, ROWS, tokens=50)
    found = weights(view, quantile=0.4, boost=2.0, draws=1)
    boxes = locate_answers(view)
    drawn = noise_of(policy, {i: box for i, box in enumerate(boxes) if box and box.box_start}, 1e-3)
    for i, (row, box, w_T) in enumerate(zip(ROWS, boxes, found, strict=True)):
        assert w_T.dtype == np.float32
        assert len(w_T) == row.num_tokens
        mark = box.box_start if box else 0
        assert (w_T[mark:] == 1).all()
        if mark:
            expected = reference(policy, row, box, "answer_mean", drawn[i])
            np.testing.assert_allclose(
                w_T[:mark], reshape_importance(np.array(expected), 0.4, 2.0), rtol=5e-3, atol=1e-4
            )
    assert np.ptp(found[0][:7]) > 0.1  # the method does something
    assert found[6].tolist() == [1.0] * 5  # one token of reasoning keeps its mass
    assert found[2].tolist() == [1.0] * 6
    assert found[3].tolist() == [1.0] * 5


def test_importance_is_averaged_over_draws() -> None:
    policy = answered.policy()
    view = answered.view(policy, ROWS, tokens=50)
    boxes = {i: box for i, box in enumerate(locate_answers(view)) if box and box.box_start}
    single = [dict(gradient_importance(view, boxes, "answer_mean", 1e-3, d)) for d in range(3)]
    assert np.abs(single[0][1] - single[1][1]).max() > 0.1 * single[0][1].max()
    found = weights(view, draws=3)
    for i, box in boxes.items():
        mean = sum(draw[i][: box.box_start].astype(np.float64) for draw in single) / 3
        np.testing.assert_allclose(found[i][: box.box_start], reshape_importance(mean), rtol=1e-4)
    joint = [weights(view, compare="answer_joint", draws=n) for n in (1, 4)]
    for one_T, four_T in zip(*joint, strict=True):
        assert one_T.tolist() == four_T.tolist()  # nothing random to average
    with pytest.raises(PoiseError, match="draws 0 measures nothing"):
        weights(view, draws=0)


def test_without_noise_only_the_joint_comparison_has_a_gradient() -> None:
    """The KL is flat there: the weights would be rounding error, raised to a mean of 1."""
    view = answered.view(answered.policy(), ROWS, tokens=50)
    for noise in (0.0, np.inf, -1e-3):
        with pytest.raises(PoiseError, match=r"^oar_g: noise .* measures nothing"):
            weights(view, noise=noise)
    assert np.ptp(weights(view, compare="answer_joint", noise=0.0)[0][:7]) > 0.1
    with pytest.raises(PoiseError, match=r"boost a finite number of 0 or above: not 0\.25 and inf"):
        weights(view, boost=np.inf)


def test_passes_of_any_size_give_the_same() -> None:
    policy = answered.policy()
    small, large = (weights(answered.view(policy, ROWS, tokens)) for tokens in (8, 10_000))
    for left, right in zip(small, large, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)


def test_no_rows_and_unknown_comparisons() -> None:
    policy = answered.policy()
    assert weights(answered.view(policy, [])) == []
    with pytest.raises(PoiseError, match="did you mean 'last'"):
        weights(answered.view(policy, ROWS), compare="lsat")


def test_divergence_and_its_slope() -> None:
    torch.manual_seed(0)
    W = torch.randn(31, 6, dtype=torch.float64)
    before, after = torch.randn(2, 5, 6, dtype=torch.float64)
    after[4] = before[4]
    leaf = after.clone().requires_grad_()
    P0 = torch.softmax(before @ W.T, dim=-1)
    expected = (P0 * (P0.log() - torch.log_softmax(leaf @ W.T, dim=-1))).sum(dim=-1)
    torch.testing.assert_close(kl_divergence(before, after, W), expected.detach())
    expected.sum().backward()
    torch.testing.assert_close(kl_gradient(before, after, W), leaf.grad)
    assert kl_divergence(before, after, W)[4] < 1e-12


def test_divergence_in_half_precision() -> None:
    """A change of a thousandth is seen, although logits as bfloat16 holds them cannot show it."""
    torch.manual_seed(0)
    W = torch.randn(50, 16).bfloat16()
    before = 4 * torch.randn(3, 16)
    after = before + 1e-3 * torch.randn(3, 16)
    rounded = before.bfloat16().double()
    exact = kl_divergence(rounded, rounded + (after - before), W.double())
    found = kl_divergence(before, after, W)
    torch.testing.assert_close(found, exact, rtol=0.1, atol=1e-9)
    assert (found > 0).all()


def test_mean_states() -> None:
    hidden = torch.arange(12.0).view(6, 2)
    found = mean_states(hidden, [(0, 1), (3, 6)])
    assert found.tolist() == [[0.0, 1.0], [8.0, 9.0]]
