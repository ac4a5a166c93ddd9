"""The design of an experiment: arms x learning rates x seeds, and the options of every run.

A run is a base (a run file), options common to all, those of its arm, a learning rate and a seed.
Two arms with the same rate and seed see the same prompts and random numbers, so they are compared
seed by seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class RunKey(NamedTuple):
    """The identity of one run.

    Example: RunKey("QB", 1e-5, 3).name == "QB-lr1e-05-seed3"
    """

    arm: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm}-lr{self.rate:g}-seed{self.seed}"


@dataclass(frozen=True, slots=True)
class Design:
    """The arms, learning rates and seeds that are compared.

    Example:
        Design("demo", (), {"shuffled": ("batch.composer=shuffled",), "QB": ()}, [1e-4], range(2))
    """

    base: str | Path  # run file or preset
    common: tuple[str, ...]  # section.option=value, as --set takes them
    arms: Mapping[str, tuple[str, ...]]
    rates: Sequence[float]
    seeds: Sequence[int]
    # Arms that train at a share of each rate; their RunKey.rate is the full rate.
    rate_shares: Mapping[str, float] = field(default_factory=dict)
    # Arms that train with another engine than the native one.
    engines: Mapping[str, str] = field(default_factory=dict)
    # arm -> the learning rate that a pilot chose for it; RunKey.rate is then only a label.
    arm_rates: Mapping[str, float] = field(default_factory=dict)

    def run_keys(self) -> list[RunKey]:
        """All runs, seed by seed."""
        # Seed is the outermost loop: an experiment that is cut short has complete seeds, and only
        # complete seeds can be compared.
        return [
            RunKey(arm, rate, seed)
            for seed in self.seeds
            for rate in self.rates
            for arm in self.arms
        ]

    def engine(self, key: RunKey) -> str:
        """What `poise train --engine` is given for one run."""
        return self.engines.get(key.arm, "native")

    def overrides(self, key: RunKey) -> tuple[str, ...]:
        """The options of one run, as `--set` takes them; later ones win."""
        lr = self.arm_rates.get(key.arm, key.rate * self.rate_shares.get(key.arm, 1.0))
        run_options = (f"update.lr={lr!r}", f"loop.seed={key.seed}")
        return (*self.common, *self.arms[key.arm], *run_options)
