"""The sampler interface: prompts and seeds -> responses, sampled from the policy's current weights.

A run constructs the sampler that `sample.engine` names, uses it for training and evaluation,
and closes it at the end of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from counterpoise.config import SampleConfig
from counterpoise.model.load import Policy
from counterpoise.types import Ints, Response

# (policy, prompts, seeds [P, G], config) -> responses [P, G]
SampleFunction = Callable[
    [Policy, Sequence[Ints], Sequence[Sequence[int]], SampleConfig], list[list[Response]]
]


class Sampler(Protocol):
    """A class in the table `SAMPLERS` of variants.py, constructed with (policy, run config)."""

    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Ints],
        seeds_PG: Sequence[Sequence[int]],
        config: SampleConfig,
    ) -> list[list[Response]]:
        """Responses for every prompt, one for each of its seeds."""

    def close(self) -> None:
        """Free what the sampler holds; called once, at the end of the run."""
