"""Gradients at the input embeddings: packed and in one pass, as token by token and alone."""

from __future__ import annotations

import answered
import numpy as np
import pytest
import tiny
import torch

import counterpoise.credit.embedding_saliency as saliency_module
from counterpoise.credit.answer_spans import locate_answers
from counterpoise.credit.embedding_saliency import EmbeddingNoise, ObjectiveInputs, token_saliency
from counterpoise.model.head import token_logprobs

ROWS = answered.rows()


def one_token_at_a_time(policy, row, spot: int, stop: int, moved=None) -> float:
    """<d log pi(last token before stop) / de, e> of one response token, e a leaf by itself."""
    ids = answered.ids(row)
    e = policy.decoder.embedding(ids).detach()
    S = len(row.content.prompt_tokens)
    if moved is not None:
        e[S : S + len(moved)] += moved
    leaf = e[S + spot].clone().requires_grad_()
    whole = torch.cat((e[: S + spot], leaf[None], e[S + spot + 1 :]))
    logits = answered.hidden(policy, row, whole)[S + stop - 2] @ policy.decoder.unembedding.T
    torch.log_softmax(logits, dim=-1)[ids[S + stop - 1]].backward()
    clean = policy.decoder.embedding(ids[S + spot]).detach()
    return float((leaf.grad * clean).sum())


def log_of_the_asked(view):
    """Objective: log pi of all that is asked for."""

    def objective(read: ObjectiveInputs) -> torch.Tensor:
        W = view.policy.decoder.unembedding
        return token_logprobs(read.hidden_n, W, read.targets_n)[0].sum()

    return objective


@pytest.fixture(params=["after prompts", "packed"], autouse=True)
def passes(request, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two ways of a pass: the second is a GPU's in half precision."""
    if request.param == "packed":
        monkeypatch.setattr(saliency_module, "is_half_on_gpu", lambda x: True)


def dot(gradient: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
    return (gradient * embedded).sum(dim=-1)


@pytest.mark.parametrize("tokens", [8, 40, 10_000])
@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_all_rows_at_once_are_each_token_alone(tokens: int, architecture: str) -> None:
    policy = answered.policy(architecture=architecture)
    view = answered.view(policy, ROWS, tokens)
    stops = {i: a.content_end for i, a in enumerate(locate_answers(view)) if a}
    last = {i: (stop - 1, stop) for i, stop in stops.items()}
    found = dict(token_saliency(view, last, log_of_the_asked(view), dot))
    assert sorted(found) == sorted(stops)
    for i, stop in stops.items():
        expected = [one_token_at_a_time(policy, ROWS[i], t, stop) for t in range(stop - 1)]
        np.testing.assert_allclose(found[i][: stop - 1], expected, rtol=1e-4, atol=1e-6)
        assert not found[i][stop - 1 :].any()
        assert len(found[i]) == ROWS[i].num_tokens


def test_noise_moves_the_point_and_leaves_the_input() -> None:
    policy = answered.policy()
    view = answered.view(policy, ROWS[:2])
    torch.manual_seed(0)
    drawn = 0.3 * torch.randn(5, 48, dtype=torch.float64)
    seen: list[ObjectiveInputs] = []

    def objective(read: ObjectiveInputs) -> torch.Tensor:
        seen.append(read)
        return log_of_the_asked(view)(read)

    noise = EmbeddingNoise(drawn, {1: (0, 5)})
    found = dict(token_saliency(view, {1: (15, 16)}, objective, dot, noise))
    expected = [one_token_at_a_time(policy, ROWS[1], t, 16, drawn) for t in range(15)]
    np.testing.assert_allclose(found[1][:15], expected, rtol=1e-4, atol=1e-6)
    e = policy.decoder.embedding(answered.ids(ROWS[1]))
    clean = answered.hidden(policy, ROWS[1], e)[17].detach()
    assert (seen[0].hidden_n[0] - clean).abs().max() > 1e-3
    moved = torch.cat((e[:3], e[3:8] + drawn, e[8:]))
    expected = answered.hidden(policy, ROWS[1], moved)[17]
    torch.testing.assert_close(seen[0].hidden_n[0], expected, rtol=1e-4, atol=1e-5)
    assert (seen[0].rows, list(seen[0].spans)) == ([1], [(0, 1)])
    assert seen[0].targets_n.tolist() == ROWS[1].content.response_tokens[15:16].tolist()


def test_weights_are_left_as_they_were() -> None:
    policy = answered.policy()
    policy.decoder.norm.weight.requires_grad_(False)
    view = answered.view(policy, ROWS)

    def fails(read: ObjectiveInputs) -> torch.Tensor:
        assert not any(p.requires_grad for p in policy.model.parameters())
        raise KeyError

    with pytest.raises(KeyError):
        dict(token_saliency(view, {0: (2, 3)}, fails, dot))
    wanted = [p.requires_grad for p in policy.model.parameters()]
    assert wanted.count(False) == 1
    assert all(p.grad is None for p in policy.model.parameters())


def test_a_response_of_one_token_has_no_inputs() -> None:
    policy = answered.policy()
    rows = [*tiny.rows(1, 2, seed=3, longest=1), ROWS[0]]
    view = answered.view(policy, rows)
    found = dict(token_saliency(view, {0: (0, 1), 2: (0, 4)}, log_of_the_asked(view), dot))
    assert found[0].tolist() == [0.0]
    assert found[2][:3].all()
    assert not list(token_saliency(view, {}, log_of_the_asked(view), dot))
    ((i, nothing),) = token_saliency(view, {1: (0, 1)}, log_of_the_asked(view), dot)
    assert (i, nothing.tolist()) == (1, [0.0])
