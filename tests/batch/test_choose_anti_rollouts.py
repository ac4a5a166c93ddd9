"""The anti-balanced unit: exact size, few rows of the rarer sign, groups that sum to zero."""

from __future__ import annotations

import random

import numpy as np
import pytest
from batch.test_choose import counts_lists, groups, kept_counts, totals
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.batch.buffer import RewardBalancedBuffer, minority_quota
from counterpoise.batch.choose_anti_rollouts import choose_anti_rollouts
from counterpoise.batch.choose_rollouts import choose_rollouts
from counterpoise.credit.advantages import grpo
from counterpoise.types import Row


def kept_rarer(counts, target, tau):
    mixed = sum(1 for p, n in counts if p and n)
    return min(*totals(counts), max(mixed, minority_quota(tau, target)))


def suffices(counts, target, tau):
    return max(totals(counts)) + kept_rarer(counts, target, tau) >= target


@settings(max_examples=300, deadline=None)
@given(counts_lists, st.integers(1, 30), st.sampled_from([0.05, 0.1, 0.25, 0.5]))
def test_batches_have_the_target_size_and_the_fewest_rows_of_the_rarer_sign(counts, target, tau):
    if 2 * minority_quota(tau, target) > target:  # the buffer refuses it
        return
    chosen = choose_anti_rollouts(groups(*counts), target, tau)
    lengths = [n for n in range(1, len(counts) + 1) if suffices(counts[:n], target, tau)]
    assert (chosen is not None) == bool(lengths)
    if chosen is None:
        return
    run = counts[: lengths[0]]
    assert [index for index, _ in chosen] == list(range(len(run)))  # no shorter run would do
    kept = kept_counts(chosen)
    mixed = sum(1 for p, n in run if p and n)
    assert sum(totals(kept)) == max(target, 2 * mixed) <= target + target % 2
    assert min(totals(kept)) == kept_rarer(run, target, tau)
    for (had_p, had_n), (has_p, has_n), (_, rows) in zip(run, kept, chosen, strict=True):
        assert has_p <= had_p
        assert has_n <= had_n
        if had_p and had_n:
            assert min(has_p, has_n) >= 1
            assert sum(row.advantage for row in rows) == pytest.approx(0.0, abs=1e-9)


def test_the_rarer_sign_is_held_down_where_balance_holds_it_up():
    waiting = groups(*[(3, 5)] * 12)
    anti, balanced = (
        choose(waiting, 48, tau)
        for choose, tau in ((choose_anti_rollouts, 0.1), (choose_rollouts, 0.5))
    )
    assert anti is not None
    assert balanced is not None
    assert totals(kept_counts(anti)) == (8, 40)  # one right row in each of eight groups
    assert totals(kept_counts(balanced)) == (24, 24)


def test_the_quota_counts_where_groups_allow_less():
    chosen = choose_anti_rollouts(groups((4, 4), (0, 30)), 20, 0.1)
    assert chosen is not None
    assert totals(kept_counts(chosen)) == (2, 18)  # 10 % of 20, although one mixed group needs 1


def test_either_sign_can_be_the_rarer():
    chosen = choose_anti_rollouts(groups(*[(6, 2)] * 9), 28, 0.1)
    assert chosen is not None
    assert totals(kept_counts(chosen)) == (24, 4)


@pytest.mark.parametrize(("unit", "tau", "share"), [
    ("experimental_anti_rollout", 0.1, (0.12, 0.18)),
    ("rollout", 0.001, (0.20, 0.32)),
    ("rollout", 0.5, (0.5, 0.5)),
])  # fmt: skip
def test_the_dose_at_twelve_percent_success(unit, tau, share):
    """Batches of 192 rows from groups of 8, problems of differing difficulty, 12 % right."""
    rng = random.Random(0)
    buffer = RewardBalancedBuffer(tau=tau, target=192, unit=unit, max_age=4)
    shares = []
    for now in range(60):
        waiting = []
        for index in range(32):
            p = rng.betavariate(0.6, 4.4)
            A_G = grpo(np.array([float(rng.random() < p) for _ in range(8)]))
            name = f"{now}:{index}"
            waiting.append([Row(name, A, 9, i, now) for i, A in enumerate(A_G.tolist())])
        buffer.add(waiting)
        while batch := buffer.take(now):
            assert len(batch.rows) == 192
            shares.append(min(batch.n_positive, batch.n_negative) / 192)
    assert len(shares) >= 5
    assert share[0] <= sum(shares) / len(shares) <= share[1], sum(shares) / len(shares)
