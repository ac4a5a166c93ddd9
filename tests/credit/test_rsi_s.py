"""RSI-S: surprisal over entropy inside a band, against whole distributions by transformers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch

from counterpoise.credit.rsi_s import weights
from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.errors import PoiseError

POLICY = tiny.policy(initializer_range=0.1)
ROWS = tiny.rows(groups=3, size=4, seed=2)


def relative_surprisals(row, temperature: float) -> list[float]:
    prompt, response = row.content.prompt_tokens, row.content.response_tokens
    ids = torch.from_numpy(np.concatenate((prompt, response))).long()
    with torch.no_grad():
        logits = POLICY.model(ids[None]).logits[0].double() / temperature
    everything = torch.log_softmax(logits, dim=-1)
    indices = []
    for t, token in enumerate(response.tolist()):
        logprobs_V = everything[len(prompt) + t - 1]
        entropy = -float((logprobs_V.exp() * logprobs_V).sum())
        indices.append(-float(logprobs_V[token]) / entropy)
    return indices


@pytest.mark.parametrize(("low", "high"), [(0.5, 1.1), (0.0, 1.0), (0.9, 1.2)])
def test_the_band(low: float, high: float) -> None:
    found = weights(CreditView(ROWS, PolicyReader(POLICY, 0.9)), low=low, high=high)
    num_kept = 0.0
    for row, weights_T in zip(ROWS, found, strict=True):
        expected = [float(low <= index <= high) for index in relative_surprisals(row, 0.9)]
        assert weights_T.tolist() == expected
        num_kept += sum(expected)
    assert 0 < num_kept < sum(row.num_tokens for row in ROWS)


def test_a_certain_token_is_left_out_unless_the_band_begins_at_zero() -> None:
    view = SimpleNamespace(
        rows=[0], logprobs=[np.array([0.0, -0.7], "f4")], entropies=[np.array([0.0, 0.7], "f4")]
    )
    assert weights(view)[0].tolist() == [0, 1]
    assert weights(view, low=0.0)[0].tolist() == [1, 1]
    assert weights(CreditView([], None)) == []


def test_a_band_of_nothing_is_refused() -> None:
    for low, high in ((2.0, 1.0), (-1.0, 1.0)):
        with pytest.raises(PoiseError, match="rsi_s: low"):
            weights(CreditView([], None), low=low, high=high)
