"""RB: update only on a batch B with min(N+(B), N-(B)) >= tau |B|.

Where almost all rollouts are right, or almost all wrong, there is little of the other sign to
cancel against. Groups wait here until the oldest of them make a balanced batch of about `target`
rollouts; how it is picked is the unit's affair: `rollout` (choose_rollouts.py) drops surplus
rollouts inside groups, `group` (choose_groups.py) picks whole groups. The paper leaves this open;
its tau is 0.5 or 0.25. tau = 0 asks for no balance: the oldest groups leave as soon as they fill a
batch.

Every rollout ever added is exactly one of: waiting, emitted, dropped_surplus, dropped_aged,
without_signal. A group leaves as a whole: its rows are never spread over two batches, so that
`grouped` can still keep it in one step. Advantage 0 is no signal: such rows are counted and never
wait. A credit with no negative rows never fills a batch with tau > 0: its groups age and drop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from counterpoise.errors import PoiseError
from counterpoise.types import Row
from counterpoise.variants import BALANCE_UNITS


def minority_quota(tau: float, size: int) -> int:
    """Rows of each sign that a batch of `size` needs: the least n with n / size >= tau.

    Not ceil(tau size), which may round up past it: 0.28 * 25 is 7.000000000000001.

    Example:
        >>> quota_of(0.5, 8), quota_of(0.25, 9), quota_of(0.28, 25)
        (4, 3, 7)
    """
    n = math.ceil(tau * size)
    return n - 1 if n and (n - 1) / size >= tau else n


@dataclass(frozen=True, slots=True)
class BufferCounts:
    """What became of the rollouts since the run began.

    added = waiting + emitted + dropped_surplus + dropped_aged + without_signal, at any time.

    Example:
        BufferCounts(added=64, emitted=32, dropped_surplus=8, dropped_aged=0, without_signal=16)
    """

    added: int = 0
    emitted: int = 0
    dropped_surplus: int = 0  # of the majority sign, or beyond the target; unit `rollout` only
    dropped_aged: int = 0  # waited for more than max_age iterations
    without_signal: int = 0  # advantage 0


@dataclass(frozen=True, slots=True)
class BalancedBatch:
    """The rows of one update, group after group, oldest first.

    Example:
        BalancedBatch(rows=(r0, r1, r2, r3), n_positive=2, n_negative=2, dropped_surplus=4)
    """

    rows: tuple[Row, ...]
    n_positive: int
    n_negative: int
    dropped_surplus: int  # rollouts given up for this batch


class RewardBalancedBuffer:
    """Groups in, balanced batches out.

    Example:
        buffer = RewardBalancedBuffer(tau=0.5, target=1024, unit="rollout", max_age=4)
        buffer.add(assign(groups, "grpo"))
        while batch := buffer.take(now=iteration):
            plan = compose("grouped", batch.rows, num_steps=4, seed=seed)

    A checkpoint holds `state()` and `counts`; give them back as `rows` and `counts`.
    """

    def __init__(
        self,
        *,
        tau: float,
        target: int,
        unit: str = "rollout",
        max_age: int = 4,
        rows: Iterable[Row] = (),
        counts: BufferCounts | None = None,
    ) -> None:
        if not 0 <= tau <= 0.5:
            raise PoiseError(f"tau {tau} is no share of the rarer sign: choose one from 0 to 0.5")
        if target < 1:
            raise PoiseError(f"a batch of {target} rollouts is empty: raise sample.prompts")
        if max_age < 0:
            raise PoiseError(f"a max_age of {max_age} would drop every rollout: choose 0 or more")
        if unit == "rollout" and 2 * minority_quota(tau, target) > target:
            raise PoiseError(
                f"no batch of {target} rollouts has a share of {tau} of each sign: "
                "make the number of rollouts even or lower tau"
            )
        self.tau, self.target, self.unit, self.max_age = tau, target, unit, max_age
        self._choose = BALANCE_UNITS.load(unit)
        self._groups: list[tuple[Row, ...]] = []  # oldest first; no row without signal
        waiting: dict[str, list[Row]] = {}
        for row in rows:
            waiting.setdefault(row.group, []).append(row)
        self._insert(waiting.values())
        self.counts = counts or BufferCounts(added=len(self))

    def add(self, groups: Iterable[Sequence[Row]]) -> None:
        """Take in whole groups, as credit returns them."""
        groups = list(groups)
        added, before = sum(map(len, groups)), len(self)
        self._insert([[row for row in group if row.sign] for group in groups])
        self.counts = replace(
            self.counts,
            added=self.counts.added + added,
            without_signal=self.counts.without_signal + added - (len(self) - before),
        )

    def take(self, iteration: int) -> BalancedBatch | None:
        """Drop what is too old in iteration `iteration`, then the next batch, or None: keep sampling."""
        fresh = [group for group in self._groups if iteration - group[0].born <= self.max_age]
        aged = len(self) - sum(map(len, fresh))
        self._groups = fresh
        self.counts = replace(self.counts, dropped_aged=self.counts.dropped_aged + aged)
        chosen = self._choose(self._groups, self.target, self.tau)
        if chosen is None:
            return None
        rows = tuple(row for _, kept in chosen for row in kept)
        positive = sum(row.advantage > 0 for row in rows)
        surplus = sum(len(self._groups[g]) for g, _ in chosen) - len(rows)
        gone = {g for g, _ in chosen}
        self._groups = [group for g, group in enumerate(self._groups) if g not in gone]
        self.counts = replace(
            self.counts,
            emitted=self.counts.emitted + len(rows),
            dropped_surplus=self.counts.dropped_surplus + surplus,
        )
        return BalancedBatch(rows, positive, len(rows) - positive, surplus)

    def state(self) -> list[Row]:
        """The waiting rows, group after group, oldest first."""
        return [row for group in self._groups for row in group]

    def __len__(self) -> int:
        return sum(map(len, self._groups))

    @property
    def waiting_positive(self) -> int:
        return sum(row.advantage > 0 for group in self._groups for row in group)

    @property
    def waiting_negative(self) -> int:
        return len(self) - self.waiting_positive

    def shortage_message(self, tries: str, remedy: str) -> str:
        """Why nothing could be taken after so many `tries` ("8 rounds"), for an engine that gives
        up."""
        if not len(self):
            return (
                f"no rollout to learn from after {tries}: in the last one the rewards of every "
                "group are equal; check the reward, or choose other problems"
            )
        return (
            f"no balanced batch in {tries}: {self.waiting_positive} positive and "
            f"{self.waiting_negative} negative rollouts wait, and it takes {self.target} with a "
            f"share of {self.tau:g} of each; {remedy}, or choose problems of another difficulty"
        )

    def _insert(self, groups: Iterable[Sequence[Row]]) -> None:
        """All of them or, on an error, none."""
        known = {group[0].group for group in self._groups}
        arrived = [tuple(group) for group in groups if group]
        for group in arrived:
            names = {row.group for row in group}
            if len(names) > 1:
                raise PoiseError(f"rows of {len(names)} groups were added as one: {sorted(names)}")
            if names & known:
                raise PoiseError(
                    f"group '{group[0].group}' is in the buffer already: "
                    "a group's name must say its iteration as well as its prompt"
                )
            known |= names
        self._groups = sorted(self._groups + arrived, key=lambda group: group[0].born)
