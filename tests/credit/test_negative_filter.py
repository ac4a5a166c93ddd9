"""Negative token filtering: wrong rollouts keep their least likely tokens only."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from one_by_one import made

from counterpoise.credit.negative_filter import weights
from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.errors import PoiseError

POLICY = tiny.policy()
ROWS = tiny.rows(groups=3, size=4, seed=11, shortest=5)


def logprobs_by_transformers(row, temperature: float) -> list[float]:
    prompt, response = row.content.prompt_tokens, row.content.response_tokens
    ids = torch.from_numpy(np.concatenate((prompt, response))).long()
    with torch.no_grad():
        logits = POLICY.model(ids[None]).logits[0].double() / temperature
    everything = torch.log_softmax(logits, dim=-1)
    return [float(everything[len(prompt) + t - 1, o]) for t, o in enumerate(response.tolist())]


@pytest.mark.parametrize("keep", [0.1, 0.4, 1.0])
def test_the_least_likely_tokens_of_wrong_rollouts_stay(keep: float) -> None:
    found = weights(CreditView(ROWS, PolicyReader(POLICY, 0.8)), keep=keep)
    for row, weights_T in zip(ROWS, found, strict=True):
        if row.advantage > 0:
            assert weights_T.tolist() == [1.0] * row.num_tokens
            continue
        logprobs = logprobs_by_transformers(row, 0.8)
        num_kept = max(1, int(keep * row.num_tokens))
        limit = sorted(logprobs)[num_kept - 1]
        assert weights_T.tolist() == [float(logprob <= limit) for logprob in logprobs]


def test_by_group_a_token_of_a_right_rollout_is_not_punished() -> None:
    rows = [
        made("g", 0, 1.0, [7, 8]), made("g", 1, -1.0, [8, 9, 8, 3]), made("g", 2, -1.0, [4, 4]),
        made("h", 0, -1.0, [7, 8]), made("h", 1, -2.0, [7]),
    ]  # fmt: skip
    found = weights(CreditView(rows), support="group")  # needs no policy
    assert [weights_T.tolist() for weights_T in found] == [
        [1, 1], [0, 1, 0, 1], [1, 1], [1, 1], [1],
    ]  # fmt: skip


def test_ties_go_to_the_first_and_no_wrong_rollout_needs_no_pass() -> None:
    wrong = SimpleNamespace(sign=-1, num_tokens=4)
    view = SimpleNamespace(rows=[wrong], logprobs=[np.full(4, -1.0, np.float32)], groups=[[0]])
    assert weights(view, keep=0.5)[0].tolist() == [1, 1, 0, 0]
    assert weights(CreditView([made("g", 0, 1.0, [7])]))[0].tolist() == [1.0]
    assert weights(CreditView([], None)) == []


def test_settings() -> None:
    for keep in (0.0, 1.5):
        with pytest.raises(PoiseError, match="keep"):
            weights(CreditView([], None), keep=keep)
    with pytest.raises(PoiseError, match="support is one of probability, group, not 'prompt'"):
        weights(CreditView([], None), support="prompt")
