"""Reward balance (RB): update only on a batch B with min(N+(B), N-(B)) >= tau |B|.

Where almost all rollouts are right, or almost all wrong, there is little of the other sign to
cancel against. Groups wait here until the oldest of them make a balanced batch of about `target`
rollouts. `unit` decides how that batch is picked: `rollout` (choose_rollouts.py) drops surplus
rollouts inside groups, `group` (choose_groups.py) picks whole groups. The paper leaves this open;
its tau is 0.5 or 0.25. tau = 0 requires no balance: the oldest groups leave as soon as they fill a
batch. `sign` decides what N+ and N- count, positive advantages or right answers: see
balance_signs.py. A third unit, `experimental_anti_rollout`, holds the rarer sign down instead.

Every rollout ever added is exactly one of: waiting, emitted, dropped_surplus, dropped_aged,
without_signal. A group leaves as a whole: its rows are never spread over two batches, so that
`grouped` can still keep it in one step. Rows whose sign is 0 never wait: they are without_signal as
soon as they are added. Advantages that are never negative cannot fill a batch with tau > 0: those
groups age and are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from counterpoise.batch.balance_signs import SignRule
from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError
from counterpoise.types import Row
from counterpoise.variants import BALANCE_SIGNS, BALANCE_UNITS

ANTI_UNIT = "experimental_anti_rollout"


def minority_quota(tau: float, size: int) -> int:
    """Rows of each sign that a batch of `size` needs: the least n with n / size >= tau.

    Not ceil(tau size), which may round up past it: 0.28 * 25 is 7.000000000000001.

    Example:
        >>> minority_quota(0.5, 8), minority_quota(0.25, 9), minority_quota(0.28, 25)
        (4, 3, 7)
    """
    rounded_up = math.ceil(tau * size)
    return rounded_up - 1 if rounded_up and (rounded_up - 1) / size >= tau else rounded_up


def check_target(tau: float, target: int, unit: str) -> None:
    """Raise where no batch of `target` rollouts can have a share of `tau` of each sign."""
    # Whole groups need not add up to the target exactly.
    if unit != "group" and 2 * minority_quota(tau, target) > target:
        raise PoiseError(
            f"no batch of {target} rollouts has a share of {tau} of each sign: "
            "make the number of rollouts (balance.target) even or lower tau"
        )


def check_balance_target(config: RunConfig) -> None:
    """`check_target` for the options of a run."""
    check_target(config.balance.tau, config.balance_target, config.balance.unit)


def describe_share(unit: str, tau: float) -> str:
    """The shares of the signs in a batch, in words."""
    if unit == ANTI_UNIT:
        return f"the rarer sign held down to a share of {tau:g}"
    return f"a share of {tau:g} of each"


@dataclass(frozen=True, slots=True)
class BufferCounts:
    """What happened to the rollouts since the run began.

    added = waiting + emitted + dropped_surplus + dropped_aged + without_signal, at any time.

    Example:
        BufferCounts(added=64, emitted=32, dropped_surplus=8, dropped_aged=0, without_signal=16)
    """

    added: int = 0
    emitted: int = 0
    dropped_surplus: int = 0  # of the majority sign, or beyond the target; none with unit `group`
    dropped_aged: int = 0  # waited for more than max_age iterations
    without_signal: int = 0  # sign 0: A = 0, or r = nan if signs are those of rewards


@dataclass(frozen=True, slots=True)
class BalancedBatch:
    """The rows of one update, group after group, oldest first.

    Example:
        BalancedBatch(rows=(r0, r1, r2, r3), n_positive=2, n_negative=2, dropped_surplus=4)
    """

    rows: tuple[Row, ...]
    n_positive: int
    n_negative: int
    dropped_surplus: int  # rollouts dropped to balance this batch


class RewardBalancedBuffer:
    """Collect groups of rows, and hand out batches with a share of at least tau of each sign (RB).

    Arguments:
        tau       least share of each sign in a batch, 0 to 0.5
        target    rollouts of a batch
        unit      rollout: drop surplus rollouts inside groups; group: choose whole groups
        sign      what is counted: the sign of the advantage or of the reward
        max_age   iterations that a group may wait

    Example:
        >>> buffer = RewardBalancedBuffer(tau=0.5, target=4)
        >>> buffer.add([[Row("1:x", a, num_tokens=9) for a in (0.5, 0.5, 0.5, -1.5)]])
        >>> buffer.take(iteration=1) is None  # one negative rollout: sample more
        True
        >>> buffer.add([[Row("1:y", a, num_tokens=9) for a in (1.5, -0.5, -0.5, -0.5)]])
        >>> [row.advantage for row in buffer.take(iteration=1).rows]
        [1.0, -1.0, 1.0, -1.0]
    """

    def __init__(
        self,
        *,
        tau: float,
        target: int,
        unit: str = "rollout",
        sign: str = "advantage",
        max_age: int = 4,
    ) -> None:
        if not 0 <= tau <= 0.5:
            raise PoiseError(f"tau {tau} is not a share of the rarer sign: choose from 0 to 0.5")
        if target < 1:
            raise PoiseError(f"a target of {target} rollouts is an empty batch: choose 1 or more")
        if max_age < 0:
            raise PoiseError(f"a max_age of {max_age} would drop every rollout: choose 0 or more")
        check_target(tau, target, unit)
        self.tau, self.target, self.unit, self.max_age = tau, target, unit, max_age
        self.sign = sign
        self._choose = BALANCE_UNITS.load(unit)
        self.sign_of: SignRule = BALANCE_SIGNS.load(sign)
        self._groups: list[tuple[Row, ...]] = []  # oldest first; rows of sign 0 are left out
        self.counts = BufferCounts()

    def restore(self, rows: Iterable[Row], counts: BufferCounts | None = None) -> None:
        """Replace what waits by the rows of an earlier buffer, as its `state()` returned them.

        `counts` are that buffer's; without them only the rows themselves count as added.
        """
        # A checkpoint stores the waiting rows flat: put the groups together again.
        waiting_groups: dict[str, list[Row]] = {}
        for row in rows:
            waiting_groups.setdefault(row.group, []).append(row)
        self._groups = []
        self._insert(waiting_groups.values())
        self.counts = counts or BufferCounts(added=len(self))

    def add(self, groups: Iterable[Sequence[Row]]) -> None:
        """Add whole groups, each a sequence of rows."""
        groups = list(groups)
        num_added, num_waiting_before = sum(map(len, groups)), len(self)
        self._insert([[row for row in group if self.sign_of(row)] for group in groups])
        num_inserted = len(self) - num_waiting_before
        self.counts = replace(
            self.counts,
            added=self.counts.added + num_added,
            without_signal=self.counts.without_signal + num_added - num_inserted,
        )

    def take(self, iteration: int) -> BalancedBatch | None:
        """Drop rows too old for `iteration`, then return the next batch; None means sample more."""
        # Age first, so that rows past their age never enter a batch.
        fresh_groups = [
            group for group in self._groups if iteration - group[0].born <= self.max_age
        ]
        num_aged = len(self) - sum(map(len, fresh_groups))
        self._groups = fresh_groups
        self.counts = replace(self.counts, dropped_aged=self.counts.dropped_aged + num_aged)
        selection = self._choose(self._groups, self.target, self.tau, self.sign_of)
        if selection is None:
            return None
        rows = tuple(row for _, group_rows in selection for row in group_rows)
        num_positive = sum(self.sign_of(row) > 0 for row in rows)
        taken_groups = {group_index for group_index, _ in selection}
        # A taken group leaves as a whole: those of its rows that are not in the batch are surplus.
        num_surplus = sum(len(self._groups[index]) for index in taken_groups) - len(rows)
        self._groups = [
            group
            for group_index, group in enumerate(self._groups)
            if group_index not in taken_groups
        ]
        self.counts = replace(
            self.counts,
            emitted=self.counts.emitted + len(rows),
            dropped_surplus=self.counts.dropped_surplus + num_surplus,
        )
        return BalancedBatch(rows, num_positive, len(rows) - num_positive, num_surplus)

    def log_metrics(self, batch: Sequence[Row]) -> dict[str, float]:
        """For a trainer's logs: what became of all rollouts so far, and how balanced `batch` is."""
        positive = sum(self.sign_of(row) > 0 for row in batch)
        return {
            **{f"rollouts_{name}": count for name, count in asdict(self.counts).items()},
            "rollouts_waiting": len(self),
            "rarer_sign": min(positive, len(batch) - positive) / len(batch),
        }

    def state(self) -> list[Row]:
        """The waiting rows, group after group, oldest first."""
        return [row for group in self._groups for row in group]

    def __len__(self) -> int:
        return sum(map(len, self._groups))

    @property
    def waiting_positive(self) -> int:
        return sum(self.sign_of(row) > 0 for group in self._groups for row in group)

    @property
    def waiting_negative(self) -> int:
        return len(self) - self.waiting_positive

    def shortage_message(self, tries: str, remedy: str) -> str:
        """The final error: why there was no batch after all `tries`, such as "8 rounds"."""
        if not len(self):
            return (
                f"no rollout to learn from after {tries}: in the last one the rewards of every "
                "group are equal; check the reward, or choose other problems"
            )
        return (
            f"no balanced batch in {tries}: {self.waiting_positive} positive and "
            f"{self.waiting_negative} negative rollouts wait, but a batch takes {self.target} with "
            f"{describe_share(self.unit, self.tau)}; {remedy}, or choose problems of another "
            "difficulty"
        )

    def _insert(self, groups: Iterable[Sequence[Row]]) -> None:
        """Insert all groups or, on an error, none of them."""
        known_names = {group[0].group for group in self._groups}
        new_groups = [tuple(group) for group in groups if group]
        for group in new_groups:
            names_in_group = {row.group for row in group}
            if len(names_in_group) > 1:
                raise PoiseError(
                    f"rows of {len(names_in_group)} groups were added as one group: "
                    f"{sorted(names_in_group)}"
                )
            if names_in_group & known_names:
                raise PoiseError(
                    f"group '{group[0].group}' is already in the buffer: "
                    "a group's name must contain its iteration as well as its prompt"
                )
            known_names |= names_in_group
        # sorted() is stable: groups of one iteration keep the order in which they were sampled.
        self._groups = sorted(self._groups + new_groups, key=lambda group: group[0].born)
