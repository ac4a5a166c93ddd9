"""A sampler whose weights are never synchronised: it samples with those of the first iteration.

This is what happens when an inference server misses its weight updates: the trainer moves on, the
rollouts come from the policy it started with, and their log-probabilities say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import torch

from counterpoise.config import RunConfig, SampleConfig
from counterpoise.model.load import Policy
from counterpoise.model.swapped_weights import restored_weights
from counterpoise.plugins import Registry
from counterpoise.run import lifecycle
from counterpoise.sample.native import sample
from counterpoise.types import Ints, Response


class StaleSampler:
    """The native sampler with the weights that the policy had when the run began."""

    def __init__(self, policy: Policy, config: RunConfig) -> None:
        self._first_weights = [
            parameter.detach().clone() for parameter in policy.model.parameters()
        ]

    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Ints],
        seeds_PG: Sequence[Sequence[int]],
        config: SampleConfig,
    ) -> list[list[Response]]:
        with restored_weights(policy.model), torch.no_grad():
            for parameter, first in zip(
                policy.model.parameters(), self._first_weights, strict=True
            ):
                parameter.copy_(first)
            return sample(policy, prompts, seeds_PG, config)

    def close(self) -> None:
        pass


@contextmanager
def stale_sampling() -> Iterator[None]:
    """Let a run sample with stale weights; no option of a run does that."""
    table = Registry("sampler", {"native": f"{__name__}:StaleSampler"})
    with patch.object(lifecycle, "SAMPLERS", table):
        yield
