"""Reward balance that counts rewards: silent rows stay, advantages are untouched."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import asdict

import numpy as np
import pytest

from counterpoise.batch.balance_signs import reward_sign
from counterpoise.batch.buffer import BufferCounts, RewardBalancedBuffer
from counterpoise.batch.dropped_rollouts import find_drops
from counterpoise.credit.advantages import grpo
from counterpoise.errors import PoiseError
from counterpoise.types import Rollout, Row

NOTHING = np.empty(0, np.int32)


def reward_rows(name: str, rewards: list[float], born: int = 0) -> list[Row]:
    """A group with its rewards; those that are nan take no part in the advantages."""
    known = [reward for reward in rewards if not math.isnan(reward)]
    advantages = iter(grpo(np.array(known)).tolist() if known else [])
    return [
        Row(
            name,
            0.0 if math.isnan(reward) else next(advantages),
            5,
            index=i,
            born=born,
            rollout=Rollout("x", "", "", "", reward, NOTHING, NOTHING, NOTHING),
        )
        for i, reward in enumerate(rewards)
    ]


def test_right_is_a_reward_above_zero():
    rows = reward_rows("g", [1.0, 0.3, 0.0, -1.0, math.nan])
    assert [reward_sign(row) for row in rows] == [1, 1, -1, -1, 0]
    with pytest.raises(PoiseError, match="carries no reward: count its sign by advantage"):
        reward_sign(Row("g", 1.0, 5))


def test_silent_rows_fill_the_batch_and_advantages_stay():
    buffer = RewardBalancedBuffer(tau=0.25, target=8, sign="reward")
    silent, mixed = reward_rows("0:a", [0.0] * 4), reward_rows("0:b", [1.0, 1.0, 0.0, 0.0])
    buffer.add([silent, mixed])
    batch = buffer.take(0)
    assert batch is not None
    assert (batch.n_positive, batch.n_negative) == (2, 6)
    assert batch.rows == (*silent, *mixed)
    assert buffer.counts == BufferCounts(added=8, emitted=8)
    by_advantage = RewardBalancedBuffer(tau=0.25, target=8)
    by_advantage.add([silent, mixed])
    assert by_advantage.take(0) is None  # four rows wait, four had no signal
    assert by_advantage.counts.without_signal == 4


def test_a_trimmed_group_is_not_recentred():
    buffer = RewardBalancedBuffer(tau=0.5, target=4, sign="reward")
    rows = reward_rows("0:a", [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    buffer.add([rows])
    batch = buffer.take(0)
    assert batch is not None
    assert batch.rows == tuple(rows[:4])
    assert sum(row.advantage for row in batch.rows) == pytest.approx(2.1602, abs=1e-4)  # 1 / std


@pytest.mark.parametrize("unit", ["rollout", "group", "experimental_anti_rollout"])
def test_streams_conserve_rollouts_and_keep_every_advantage(unit):
    silent_rows_trained = 0
    for seed in range(120):
        silent_rows_trained += follow_stream(random.Random(seed), unit)
    assert silent_rows_trained > 60


def follow_stream(rng: random.Random, unit: str) -> int:
    tau, target = rng.choice([0.1, 0.25, 0.5]), 2 * rng.randint(2, 16)
    options = {"tau": tau, "target": target, "unit": unit, "sign": "reward", "max_age": 2}
    buffer = RewardBalancedBuffer(**options)
    original: dict[tuple[str, int], Row] = {}
    emitted: Counter[tuple[str, int]] = Counter()
    drops: Counter[str] = Counter()
    silent_rows = 0
    for now in range(8):
        success = rng.random()
        groups = [
            reward_rows(
                f"{now}:{g}",
                [
                    math.nan if rng.random() < 0.05 else float(rng.random() < success)
                    for _ in range(rng.randint(1, 8))
                ],
                now,
            )
            for g in range(rng.randint(0, 5))
        ]
        original |= {row.name: row for group in groups for row in group}
        before = [*buffer.state(), *(row for group in groups for row in group)]
        buffer.add(groups)
        if rng.random() < 0.3:  # through a checkpoint
            counts = BufferCounts(**asdict(buffer.counts))
            waiting_rows = buffer.state()
            buffer = RewardBalancedBuffer(**options)
            buffer.restore(waiting_rows, counts)
        batch = buffer.take(now)
        rows = batch.rows if batch else ()
        if batch:
            right = sum(row.content.reward > 0 for row in rows)
            assert (batch.n_positive, batch.n_negative) == (right, len(rows) - right)
            if unit == "experimental_anti_rollout":
                assert len(rows) == target
            else:
                assert min(right, len(rows) - right) >= tau * len(rows)
        for row in rows:
            assert row is original[row.name]  # its advantage is the one it was given
            silent_rows += row.sign == 0
        emitted.update(row.name for row in rows)
        found = find_drops([], before, rows, buffer.state(), now - 2, buffer.sign_of)
        drops.update({reason: len(names) for reason, names in found.items()})
        counts = buffer.counts
        assert (counts.without_signal, counts.dropped_surplus, counts.dropped_aged) == (
            drops["no_signal"],
            drops["surplus"],
            drops["aged"],
        )
        assert counts.emitted == len(emitted)
        assert counts.added == len(original) == len(buffer) + counts.emitted + drops.total()
    assert all(times == 1 for times in emitted.values())
    return silent_rows
