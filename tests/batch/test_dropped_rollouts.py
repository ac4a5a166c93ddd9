"""Used or dropped, and why."""

from __future__ import annotations

import numpy as np

from counterpoise.batch.buffer import RewardBalancedBuffer
from counterpoise.batch.dropped_rollouts import find_drops
from counterpoise.types import Group, Rollout, Row

NOTHING = np.empty(0, np.int32)


def rows(group: str, *advantages: float, born: int = 1) -> list[Row]:
    return [Row(group, A, 5, index=i, born=born) for i, A in enumerate(advantages)]


def test_reasons_by_hand() -> None:
    dropped = Group("1:x", 1, tuple(Rollout("x", "", "", "", 1.0, *[NOTHING] * 3) for _ in "ab"))
    old, new, silent = rows("1:a", 1, -1), rows("5:b", 1, 1, -2, born=5), rows("5:c", 0, 0, born=5)
    waiting = rows("5:d", 1, -1, born=5)
    batch = [new[0], new[2]]
    found = find_drops([dropped], [*old, *new, *silent, *waiting], batch, waiting, oldest=3)
    assert found == {
        "no_spread": [("1:x", 0), ("1:x", 1)],
        "no_signal": [("5:c", 0), ("5:c", 1)],
        "surplus": [("5:b", 1)],
        "aged": [("1:a", 0), ("1:a", 1)],
    }


def test_without_balance_everything_is_used() -> None:
    batch = rows("1:a", 1, -1, 0)
    assert find_drops([], batch, batch, [], oldest=-3) == {}


def test_it_agrees_with_the_counts_of_the_buffer() -> None:
    rng = np.random.default_rng(0)
    for unit in ("rollout", "group"):
        buffer = RewardBalancedBuffer(tau=0.5, target=8, unit=unit, max_age=1)
        told = {"no_signal": 0, "surplus": 0, "aged": 0}
        for now in range(1, 40):
            groups = [
                rows(f"{now}:{g}", *rng.choice([-1.0, 0.0, 1.0, 1.0], 4).tolist(), born=now)
                for g in range(2)
            ]
            before = [*buffer.state(), *(row for group in groups for row in group)]
            buffer.add(groups)
            taken = buffer.take(now)
            batch = taken.rows if taken else ()
            for reason, names in find_drops([], before, batch, buffer.state(), now - 1).items():
                told[reason] += len(names)
        counts = buffer.counts
        expected = (counts.without_signal, counts.dropped_surplus, counts.dropped_aged)
        assert tuple(told.values()) == expected
        assert min(expected[0], expected[2]) > 0
