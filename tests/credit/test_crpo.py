"""CRPO's entropy factor, against whole distributions by transformers in float64."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import by_autograd as by
import numpy as np
import pytest
import tiny

from counterpoise.credit.crpo import coin_entropy, weights
from counterpoise.credit.view import CreditView
from counterpoise.errors import PoiseError
from counterpoise.sample.build_groups import build_groups
from counterpoise.types import Prompt, Response

POLICY = tiny.policy(initializer_range=0.1)
ROWS = [
    replace(row, rollout=replace(row.content, generic_logprob=-4.0 - 0.2 * i))
    for i, row in enumerate(tiny.rows(seed=2))
]


def test_a_response_as_likely_as_a_generic_one_has_the_least_credit() -> None:
    model = copy.deepcopy(POLICY.model).double()
    found = weights(CreditView(ROWS, by.reader(POLICY)), scale=0.5)
    for row, weights_T in zip(ROWS, found, strict=True):
        mean = float(by.of_tokens(by.logprobs_TV(POLICY, row, model=model), row).mean())
        p = math.exp(mean) / (math.exp(mean) + math.exp(row.content.generic_logprob))
        entropy = -p * math.log(p) - (1 - p) * math.log(1 - p)
        np.testing.assert_allclose(weights_T, 1 - 0.5 * entropy, rtol=2e-6)
        assert len(weights_T) == row.num_tokens
    assert len({float(weights_T[0]) for weights_T in found}) > 6


def test_the_entropy_of_a_coin_at_its_ends() -> None:
    np.testing.assert_allclose(coin_entropy(np.array([0.0, 800.0, -800.0])), [math.log(2), 0, 0])


def test_it_needs_generic_responses() -> None:
    bare = [replace(ROWS[0], rollout=replace(ROWS[0].content, generic_logprob=None))]
    with pytest.raises(PoiseError, match=r"set sample\.anchors=1"):
        weights(CreditView(bare, by.reader(POLICY)))
    with pytest.raises(PoiseError, match="scale must be 0 to 1"):
        weights(CreditView([], None), scale=2.0)


def test_every_rollout_of_a_group_knows_how_likely_its_anchors_were() -> None:
    tokens = np.array([3, 4], dtype=np.int32)
    responses = [
        Response(tokens, np.array(logprobs, dtype=np.float32), "", True)
        for logprobs in ([-9, -9], [-1, -2], [-3, -4])
    ]
    (group,) = build_groups([(Prompt("a", "", ""), tokens)], [responses], [1, 0, 0], 1, anchors=2)
    assert [rollout.generic_logprob for rollout in group.rollouts] == [-2.5] * 3
    (group,) = build_groups([(Prompt("a", "", ""), tokens)], [responses], [1, 0, 0], 1)
    assert [rollout.generic_logprob for rollout in group.rollouts] == [None] * 3
