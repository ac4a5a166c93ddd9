"""Pulls by token type against their formula, summed token by token."""

from __future__ import annotations

import torch

from counterpoise.microscope.token_types import type_pulls


def test_pulls_are_summed_over_the_tokens_of_a_type() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.tensor([7, 2, 7, 9, 2, 7])  # in no order
    hidden = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    logprobs = -torch.rand(6, generator=generator, dtype=torch.float64)
    pulls = torch.randn(6, generator=generator, dtype=torch.float64)
    computed = type_pulls(hidden, tokens, logprobs, pulls)
    assert computed.token_ids.tolist() == [2, 7, 9]
    weights = pulls * (1 - logprobs.exp())
    for index, token in enumerate((2, 7, 9)):
        own = [weights[k] * hidden[k] for k in range(6) if tokens[k] == token]
        torch.testing.assert_close(computed.net[index], sum(own).norm())
        torch.testing.assert_close(computed.gross[index], sum(pull.norm() for pull in own))
