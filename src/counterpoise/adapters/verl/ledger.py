"""RB's books for a host that keeps the rollouts itself: groups come in by name, names go out.

    enter    rewards of finished groups -> advantages -> the buffer
    take     the names to train on now, or None: sample more
    discard  the names nobody needs any more: dropped, aged, or without signal

Every name that entered is exactly one of: waiting, taken, discarded. The rule itself, and what
becomes of a group that loses rows, are those of batch/buffer.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from counterpoise.batch.buffer import RewardBalancedBuffer
from counterpoise.errors import PoiseError
from counterpoise.types import Row
from counterpoise.variants import ADVANTAGES

COUNTS = ("added", "emitted", "dropped_surplus", "dropped_aged", "without_signal")


@dataclass(frozen=True, slots=True)
class Finished:
    """A rollout that was judged.

    Example:
        Finished(key="5c1e_3_0", reward=1.0, num_tokens=57)
    """

    key: str
    reward: float
    num_tokens: int


class Ledger:
    """
    Example:
        ledger = Ledger(tau=0.25, target=1024, unit="rollout", max_age=4, credit="grpo")
        ledger.enter({"5c1e": [Finished("5c1e_0_0", 1.0, 57), ...]}, now=1)
        taken = ledger.take(now=1)      # {"5c1e_0_0": Row(...), ...} or None
    """

    def __init__(
        self, *, tau: float, target: int, unit: str, max_age: int, credit: str = "grpo"
    ) -> None:
        self.buffer = RewardBalancedBuffer(tau=tau, target=target, unit=unit, max_age=max_age)
        self._advantages = ADVANTAGES.load(credit)
        self._keys: dict[tuple[str, int], str] = {}  # of what waits: group, place in it -> name
        self._discarded: list[str] = []

    def enter(self, groups: Mapping[str, Sequence[Finished]], now: int) -> None:
        """Whole groups, each once, under names that are never used again."""
        arrived = []
        for name, members in groups.items():
            rewards_G = np.array([member.reward for member in members], dtype=np.float64)
            if not np.isfinite(rewards_G).all():
                raise PoiseError("a reward is not a number: make the reward function return one")
            arrived.append(
                [
                    Row(name, float(advantage), member.num_tokens, index=i, born=now)
                    for i, (member, advantage) in enumerate(
                        zip(members, self._advantages(rewards_G), strict=True)
                    )
                ]
            )
            self._keys.update({(name, i): member.key for i, member in enumerate(members)})
        self.buffer.add(arrived)

    def take(self, now: int) -> dict[str, Row] | None:
        """The rows of the next update by name, group after group; None while there is no batch."""
        batch = self.buffer.take(now)
        rows = batch.rows if batch else ()
        taken = {self._keys.pop(row.name): row for row in rows}
        waiting = {row.name for row in self.buffer.state()}
        self._discarded += [key for place, key in self._keys.items() if place not in waiting]
        self._keys = {place: key for place, key in self._keys.items() if place in waiting}
        return taken or None

    def discard(self) -> list[str]:
        """Names that were dropped since the last call."""
        names, self._discarded = self._discarded, []
        return names

    @property
    def waiting(self) -> list[str]:
        return [self._keys[row.name] for row in self.buffer.state()]

    def numbers(self, taken: Mapping[str, Row]) -> dict[str, float]:
        """What became of the rollouts, for the logs: counts since the run began, and this batch."""
        counts = {f"rollouts_{name}": getattr(self.buffer.counts, name) for name in COUNTS}
        positive = sum(row.advantage > 0 for row in taken.values())
        rarer = min(positive, len(taken) - positive) / len(taken)
        waited = max(row.born for row in taken.values()) - min(row.born for row in taken.values())
        return {
            **counts,
            "rollouts_waiting": len(self.buffer),
            "rarer_sign": rarer,
            "rounds_waited": waited,
        }
