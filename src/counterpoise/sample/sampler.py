"""What a sampler is: prompts and seeds -> responses, by the policy's weights as they are now.

`loop.train` makes the one that `sample.engine` names, training and evaluation draw with it, and it
is closed at the end of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from counterpoise.config import SampleConfig
from counterpoise.model.load import Policy
from counterpoise.types import Ints, Response

SampleFunction = Callable[
    [Policy, Sequence[Ints], Sequence[Sequence[int]], SampleConfig], list[list[Response]]
]


class Sampler(Protocol):
    """Made of (policy, config of the run) by the table in `sample/__init__.py`."""

    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Ints],
        seeds_PG: Sequence[Sequence[int]],
        config: SampleConfig,
    ) -> list[list[Response]]:
        """Responses for every prompt, one for each of its seeds."""

    def close(self) -> None: ...
