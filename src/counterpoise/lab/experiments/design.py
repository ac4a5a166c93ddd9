"""Arms of one experiment: the same seeds, prompts and start, another batch.

A run is a base (a run file), options common to all, those of its arm, a learning rate and a seed.
Two arms with the same rate and seed see the same prompts and random numbers, so they are compared
seed by seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class RunKey(NamedTuple):
    """Example: Key("QB", 1e-5, 3).name == "QB-lr1e-05-seed3" """

    arm: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm}-lr{self.rate:g}-seed{self.seed}"


@dataclass(frozen=True, slots=True)
class Design:
    """What is compared with what.

    Example:
        Design("demo", (), {"shuffled": ("batch.composer=shuffled",), "QB": ()}, [1e-4], range(2))
    """

    base: str | Path  # run file or preset
    common: tuple[str, ...]  # section.option=value, as --set takes them
    arms: Mapping[str, tuple[str, ...]]
    rates: Sequence[float]
    seeds: Sequence[int]

    def run_keys(self) -> list[RunKey]:
        """Seed by seed over all rates and arms: what is cut short has whole seeds behind it."""
        return [
            RunKey(arm, rate, seed)
            for seed in self.seeds
            for rate in self.rates
            for arm in self.arms
        ]

    def overrides(self, key: RunKey) -> tuple[str, ...]:
        own = (f"update.lr={key.rate!r}", f"loop.seed={key.seed}")
        return (*self.common, *self.arms[key.arm], *own)
