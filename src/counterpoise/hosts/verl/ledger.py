"""RB's bookkeeping for a host that keeps the rollouts itself: it sees rewards and keys only.

    add_groups     rewards of finished groups -> advantages -> the buffer
    take_batch     the keys to train on now, or None: sample more
    pop_discarded  the keys that are no longer needed: dropped, aged, or without signal

Every key that was added is exactly one of: waiting, taken, discarded. How a batch is balanced, and
what becomes of a group that loses rows, is decided in batch/buffer.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from counterpoise.batch.buffer import BufferCounts, RewardBalancedBuffer
from counterpoise.errors import PoiseError
from counterpoise.types import Row
from counterpoise.variants import ADVANTAGES


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """A finished rollout and its reward.

    Example:
        ScoredRollout(key="5c1e_3_0", reward=1.0, num_tokens=57)
    """

    key: str
    reward: float
    num_tokens: int


class BalanceLedger:
    """Which rollouts wait, which are trained, and which are discarded.

    Example:
        ledger = BalanceLedger(tau=0.25, target=1024, unit="rollout", max_age=4, credit="grpo")
        ledger.add_groups({"5c1e": [ScoredRollout("5c1e_0_0", 1.0, 57), ...]}, sampling_round=1)
        batch = ledger.take_batch(sampling_round=1)      # {"5c1e_0_0": Row(...), ...} or None
    """

    def __init__(
        self, *, tau: float, target: int, unit: str, max_age: int, credit: str = "grpo"
    ) -> None:
        self.buffer = RewardBalancedBuffer(tau=tau, target=target, unit=unit, max_age=max_age)
        self._compute_advantages = ADVANTAGES.load(credit)
        self._waiting_keys: dict[tuple[str, int], str] = {}  # (group, index in it) -> key
        self._discarded: list[str] = []

    def add_groups(
        self, groups: Mapping[str, Sequence[ScoredRollout]], sampling_round: int
    ) -> dict[str, Row]:
        """Add whole groups, each once, under names that are never used again.

        Returns all their rows by key, those without signal too.
        """
        credited_groups = []
        rows_by_key: dict[str, Row] = {}
        for group_name, members in groups.items():
            rewards_G = np.array([member.reward for member in members], dtype=np.float64)
            if not np.isfinite(rewards_G).all():
                raise PoiseError("a reward is not a number: make the reward function return one")
            credited_groups.append(
                [
                    Row(
                        group_name,
                        float(advantage),
                        member.num_tokens,
                        index=index,
                        born=sampling_round,
                    )
                    for index, (member, advantage) in enumerate(
                        zip(members, self._compute_advantages(rewards_G), strict=True)
                    )
                ]
            )
            for member, row in zip(members, credited_groups[-1], strict=True):
                rows_by_key[member.key] = row
                self._waiting_keys[row.name] = member.key
        self.buffer.add(credited_groups)
        return rows_by_key

    def take_batch(self, sampling_round: int) -> dict[str, Row] | None:
        """The rows of the next update by key, group after group; None while there is no batch."""
        batch = self.buffer.take(sampling_round)
        rows = batch.rows if batch else ()
        rows_by_key = {self._waiting_keys.pop(row.name): row for row in rows}
        # The buffer drops rows silently: those that neither left nor stayed were dropped.
        waiting_names = {row.name for row in self.buffer.state()}
        self._discarded += [
            key for name, key in self._waiting_keys.items() if name not in waiting_names
        ]
        self._waiting_keys = {
            name: key for name, key in self._waiting_keys.items() if name in waiting_names
        }
        return rows_by_key or None

    def pop_discarded(self) -> list[str]:
        """The keys that were dropped since the last call."""
        keys, self._discarded = self._discarded, []
        return keys

    @property
    def waiting_rows(self) -> dict[str, Row]:
        """The rows that wait for a later batch by key, group after group, oldest first."""
        return {self._waiting_keys[row.name]: row for row in self.buffer.state()}

    def restore(self, waiting_rows: Mapping[str, Row], counts: BufferCounts) -> None:
        """Go on from an earlier ledger's `waiting_rows` and its buffer's counts."""
        self.buffer.restore(waiting_rows.values(), counts)
        self._waiting_keys = {row.name: key for key, row in waiting_rows.items()}

    def batch_metrics(self, batch: Mapping[str, Row]) -> dict[str, float]:
        """For the logs: what became of all rollouts so far, and how balanced this batch is."""
        rounds = [row.born for row in batch.values()]
        return {
            **self.buffer.log_metrics(list(batch.values())),
            "rounds_waited": max(rounds) - min(rounds),
        }
