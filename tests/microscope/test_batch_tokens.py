"""A snapshot is the trainer's own forward, row after row; nonsense is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

from counterpoise.errors import PoiseError
from counterpoise.microscope.batch_tokens import take_snapshot, token_residuals
from counterpoise.microscope.coupling import decompose
from counterpoise.model.scoring import score_logprobs


def test_a_snapshot_is_in_the_order_of_the_rows_however_it_is_cut() -> None:
    policy, rows = tiny.policy(), tiny.rows()
    whole, cut = take_snapshot(policy, rows), take_snapshot(policy, rows, micro_tokens=20)
    lengths = [row.num_tokens for row in rows]
    expected = np.concatenate(score_logprobs(policy, rows, 1.0, 16384))
    np.testing.assert_allclose(whole.logprobs, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(whole.hidden, cut.hidden, rtol=1e-4, atol=1e-5)
    assert whole.rows.tolist() == np.repeat(np.arange(len(rows)), lengths).tolist()
    assert whole.groups.tolist() == np.repeat([0] * 4 + [1] * 4 + [2] * 4, lengths).tolist()
    assert whole.positions.tolist() == [t for n in lengths for t in range(n)]
    np.testing.assert_array_equal(whole.advantages, np.concatenate([r.advantages_T for r in rows]))


def test_errors_sum_to_zero_and_point_at_the_token() -> None:
    policy, rows = tiny.policy(), tiny.rows()
    seen = take_snapshot(policy, rows)
    R = token_residuals(seen.hidden, policy.decoder.unembedding, seen.tokens)
    torch.testing.assert_close(R.sum(dim=1), torch.zeros(len(seen)), rtol=0, atol=1e-5)
    torch.testing.assert_close(
        R.gather(1, seen.tokens[:, None]).squeeze(1), 1 - seen.logprobs.exp(), rtol=1e-4, atol=1e-6
    )


def test_an_empty_batch_an_empty_response_and_advantages_that_are_not_finite() -> None:
    policy, rows = tiny.policy(), tiny.rows(groups=1)
    nothing = replace(rows[0].content, response_tokens=np.empty(0, np.int32))
    for batch, words in (
        ([], "no rows"),
        ([*rows, replace(rows[0], num_tokens=0, rollout=nothing)], "is empty"),
        ([*rows, replace(rows[0], advantage=float("nan"))], "not finite"),
    ):
        with pytest.raises(PoiseError, match=words):
            take_snapshot(policy, batch)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([5, -100], "-100 is not the id of a token: leave out padding and masked tokens first"),
        ([5, 10], "token 10 is outside a vocabulary of 10: the rollouts come from another"),
    ],
)
def test_ids_outside_the_vocabulary(tokens: list[int], message: str) -> None:
    arguments = torch.ones(2, 4), torch.ones(10, 4), torch.tensor(tokens)
    with pytest.raises(PoiseError, match=f"^{message}"):
        decompose(*arguments, torch.ones(2), torch.zeros(2))
