"""Conservation and balance over random streams of groups."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import asdict

import numpy as np
import pytest

from counterpoise.batch.buffer import BufferCounts, RewardBalancedBuffer
from counterpoise.credit.advantages import grpo
from counterpoise.errors import PoiseError
from counterpoise.types import Row


def sample_group(rng: random.Random, name: str, born: int) -> list[Row]:
    """A zero-sum group of 0/1 or graded rewards; now and then one of a single sign."""
    size = rng.randint(1, 8)
    levels = rng.choice([1, 1, 1, 4])
    rate = rng.random()
    rewards = [sum(rng.random() < rate for _ in range(levels)) for _ in range(size)]
    advantages = [size * reward - sum(rewards) for reward in rewards]
    if rng.random() < 0.1:
        advantages = [max(a, 0) for a in advantages]
    return [Row(name, float(a), 1, index=i, born=born) for i, a in enumerate(advantages)]


def name_of(row: Row) -> tuple[str, int]:
    return row.group, row.index


@pytest.mark.parametrize("unit", ["rollout", "group"])
@pytest.mark.parametrize("part", range(4))
def test_no_rollout_is_lost_or_repeated_and_every_batch_is_balanced(unit, part):
    for seed in range(250 * part, 250 * (part + 1)):
        follow_one_stream(random.Random(seed), unit)


def follow_one_stream(rng: random.Random, unit: str) -> None:
    tau, target, max_age = (
        rng.choice([0.0, 0.25, 0.4, 0.5]),
        2 * rng.randint(2, 16),
        rng.randint(0, 4),
    )
    options = {"tau": tau, "target": target, "unit": unit, "max_age": max_age}
    buffer = RewardBalancedBuffer(**options)
    original: dict[tuple[str, int], Row] = {}
    emitted: Counter[tuple[str, int]] = Counter()
    home: dict[str, int] = {}
    batches = 0
    for now in range(8):
        groups = [sample_group(rng, f"{now}:{g}", now) for g in range(rng.randint(0, 5))]
        original |= {name_of(row): row for group in groups for row in group}
        buffer.add(groups)
        if rng.random() < 0.3:  # through a checkpoint
            waiting_rows, counts = buffer.state(), BufferCounts(**asdict(buffer.counts))
            buffer = RewardBalancedBuffer(**options)
            buffer.restore(waiting_rows, counts)
        while batch := buffer.take(now):
            batches += 1
            positive = sum(row.sign > 0 for row in batch.rows)
            assert (batch.n_positive, batch.n_negative) == (positive, len(batch.rows) - positive)
            assert min(batch.n_positive, batch.n_negative) >= tau * len(batch.rows)
            check_size(batch, unit, target)
            check_rows(batch, original, now, max_age)
            for row in batch.rows:
                emitted[name_of(row)] += 1
                assert home.setdefault(row.group, batches) == batches
        check_conservation(buffer, original, emitted)


def check_size(batch, unit, target):
    if unit == "rollout":
        assert len(batch.rows) == target
    else:
        assert target <= len(batch.rows) < target + 8
        assert batch.dropped_surplus == 0


def check_rows(batch, original, now, max_age):
    groups = defaultdict(list)
    for row in batch.rows:
        groups[row.group].append(row)
        assert row.sign == original[name_of(row)].sign != 0
        assert now - row.born <= max_age
    for name, rows in groups.items():
        before = [row for key, row in original.items() if key[0] == name and row.sign]
        if len(rows) == len(before):
            assert [row.advantage for row in rows] == [row.advantage for row in before]
        elif len({row.sign for row in before}) == 2:
            assert {row.sign for row in rows} == {1, -1}
            assert sum(row.advantage for row in rows) == pytest.approx(0.0, abs=1e-9)


def check_conservation(buffer, original, emitted):
    counts = buffer.counts
    waiting = [name_of(row) for row in buffer.state()]
    assert all(times == 1 for times in emitted.values())
    assert len(set(waiting)) == len(waiting) == len(buffer)
    assert not set(waiting) & set(emitted)
    assert buffer.waiting_positive + buffer.waiting_negative == len(buffer)
    assert counts.added == len(original)
    assert counts.emitted == len(emitted)
    assert counts.without_signal == sum(row.sign == 0 for row in original.values())
    assert counts.added == (
        len(buffer)
        + counts.emitted
        + counts.dropped_surplus
        + counts.dropped_aged
        + counts.without_signal
    )


def pair(name: str, born: int = 0) -> list[Row]:
    return [Row(name, 1.0, 1, 0, born), Row(name, -1.0, 1, 1, born)]


def test_oldest_leave_first_and_the_too_old_are_dropped():
    buffer = RewardBalancedBuffer(tau=0.5, target=4, max_age=1)
    buffer.add([pair("b", born=1)])
    buffer.add([pair("a", born=0)])
    buffer.add([pair("c", born=2)])
    batch = buffer.take(iteration=1)
    assert batch is not None
    assert [row.group for row in batch.rows] == ["a", "a", "b", "b"]
    assert buffer.take(iteration=3) is None
    assert len(buffer) == 2
    assert buffer.take(iteration=4) is None
    assert buffer.counts == BufferCounts(added=6, emitted=4, dropped_aged=2)


def test_tau_zero_lets_a_batch_of_one_sign_go():
    buffer = RewardBalancedBuffer(tau=0.0, target=3)
    buffer.add([[Row("a", 1.0, 1, i) for i in range(4)]])
    batch = buffer.take(iteration=0)
    assert batch is not None
    assert (batch.n_positive, batch.n_negative, batch.dropped_surplus) == (3, 0, 1)
    assert [row.advantage for row in batch.rows] == [1.0] * 3


def test_a_sparse_stream_waits_and_then_goes():
    buffer = RewardBalancedBuffer(tau=0.5, target=8, max_age=9)
    for now in range(4):
        assert buffer.take(now) is None
        rows = [Row(f"{now}", a, 1, i, now) for i, a in enumerate([0.75, -0.25, -0.25, -0.25])]
        buffer.add([rows])
    batch = buffer.take(iteration=4)
    assert batch is not None
    assert [row.advantage for row in batch.rows] == [0.5, -0.5] * 4
    assert batch.dropped_surplus == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau": 0.6, "target": 8}, "from 0 to 0.5"),
        ({"tau": float("nan"), "target": 8}, "from 0 to 0.5"),
        ({"tau": 0.5, "target": 7}, "even or lower tau"),
        ({"tau": 0.5, "target": 0}, r"target of 0 rollouts"),
        ({"tau": 0.5, "target": 8, "max_age": -1}, "max_age"),
        ({"tau": 0.5, "target": 8, "unit": "rollouts"}, "did you mean 'rollout'"),
    ],
)
def test_options_that_cannot_work(options, message):
    with pytest.raises(PoiseError, match=message):
        RewardBalancedBuffer(**options)


def test_a_refused_group_changes_nothing():
    buffer = RewardBalancedBuffer(tau=0.5, target=8)
    buffer.add([pair("a")])
    before = buffer.counts
    with pytest.raises(PoiseError, match="'a' is already in the buffer"):
        buffer.add([pair("b"), pair("a")])
    with pytest.raises(PoiseError, match="2 groups were added as one"):
        buffer.add([pair("b") + pair("c")])
    assert [row.group for row in buffer.state()] == ["a", "a"]
    assert buffer.counts == before


def test_a_buffer_says_what_it_lacks():
    buffer = RewardBalancedBuffer(tau=0.25, target=8, max_age=4)
    assert buffer.shortage_message("2 rounds", "lower tau").startswith(
        "no rollout to learn from after 2 rounds: in the last one the rewards of every group"
    )
    buffer.add([pair("a")])
    assert buffer.take(0) is None
    assert buffer.shortage_message("2 rounds", "lower tau") == (
        "no balanced batch in 2 rounds: 1 positive and 1 negative rollouts wait, but a batch "
        "takes 8 with a share of 0.25 of each; lower tau, or choose problems of another difficulty"
    )


def test_a_rollout_at_the_mean_is_never_pushed_for_balance():
    """Of rewards 0.2, 0.1 and 0.3 the first is the mean: the second is the negative one kept."""
    rewards = [[0.2, 0.1, 0.3], [0.0, 0.0, 1.0]]
    rows = [
        [Row(f"g{g}", float(a), 5, index=i) for i, a in enumerate(grpo(np.array(of_group)))]
        for g, of_group in enumerate(rewards)
    ]
    buffer = RewardBalancedBuffer(tau=0.5, target=4)
    buffer.add(rows)
    batch = buffer.take(iteration=0)
    assert batch is not None
    assert [name_of(row) for row in batch.rows] == [("g0", 1), ("g0", 2), ("g1", 0), ("g1", 2)]
    assert buffer.counts.without_signal == 1
