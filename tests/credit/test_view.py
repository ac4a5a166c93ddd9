"""What a weighting sees is what the trainer computes, row by row."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch

from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.errors import PoiseError
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.scoring import forward

ROWS = tiny.rows(groups=3, size=4, seed=2)


def view(policy, tokens: int = 40) -> CreditView:
    return CreditView(ROWS, PolicyReader(policy, 0.8, FittedSize(tokens)))


def test_tokens_are_read_as_alone() -> None:
    policy = tiny.policy()
    seen = view(policy)
    with torch.no_grad():
        for i, row in enumerate(ROWS):
            alone = forward(policy, [row], 0.8)
            np.testing.assert_allclose(seen.logprobs[i], alone.logprobs_M, atol=2e-5)
            np.testing.assert_allclose(seen.entropies[i], alone.entropies_M, atol=2e-5)
            torch.testing.assert_close(seen.hidden[i], alone.hidden_M, atol=2e-4, rtol=1e-4)
    assert seen.groups == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_one_pass_serves_all(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = tiny.policy()
    passes = []
    real = type(policy.decoder).__call__

    def counted(self, *args, **kwargs):
        passes.append(len(args[0]))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(type(policy.decoder), "__call__", counted)
    seen = view(policy, tokens=10_000)
    assert not passes
    assert [len(x) for x in seen.entropies] == [len(x) for x in seen.logprobs]
    assert len(seen.hidden) == len(ROWS)
    assert len(passes) == 1


def test_a_hint_is_a_prompt_of_the_rows_own() -> None:
    policy = tiny.policy()
    rng = np.random.default_rng(0)
    hints = [rng.integers(2, 97, 2 + i).astype(np.int32) for i in range(len(ROWS))]
    found = view(policy).logprobs_with_prompts(hints)
    for row, hint, logprobs_T in zip(ROWS, hints, found, strict=True):
        ids = torch.from_numpy(np.concatenate((hint, row.content.response_tokens))).long()
        with torch.no_grad():
            logits = policy.model(ids[None]).logits[0, len(hint) - 1 : -1] / 0.8
        expected = torch.log_softmax(logits, dim=-1).gather(1, ids[len(hint) :, None])[:, 0]
        np.testing.assert_allclose(logprobs_T, expected, atol=3e-5)
    own = view(policy).logprobs_with_prompts([row.content.prompt_tokens for row in ROWS])
    for left, right in zip(own, view(policy).logprobs, strict=True):
        np.testing.assert_allclose(left, right, atol=3e-5)


def test_without_a_policy_it_is_refused() -> None:
    with pytest.raises(PoiseError, match="need the policy"):
        _ = CreditView(ROWS).entropies


def test_what_was_read_is_known_and_nothing_is_read_for_it() -> None:
    seen = view(tiny.policy())
    assert seen.logprobs_if_read is None
    assert len(seen.groups) == 3
    assert seen.logprobs_if_read is None
    assert len(seen.entropies) == len(ROWS)
    assert seen.logprobs_if_read is seen.logprobs
