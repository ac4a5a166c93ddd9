"""Arms against each other: curves read at equal cost, differences by seed, verdicts."""

from __future__ import annotations

import math

import pytest

from counterpoise.experiment.compare import compare, differences, told, verdict
from counterpoise.experiment.curves import by_run, rates
from counterpoise.statistics.finding import Record
from counterpoise.statistics.student import quantile
from experiment.made_up import run


def test_at_equal_rollouts_and_updates_by_hand() -> None:
    """RB took 6 updates, the other 8: its curve is read at 6, halfway between 4 and 8."""
    runs = by_run(run("shuffled", 0, [0.4, 0.5, 0.6], 4) + run("RB", 0, [0.4, 0.5, 0.7], 3))
    assert differences(runs, "RB", "shuffled", 1e-4, "rollouts") == [pytest.approx(0.1)]
    assert differences(runs, "RB", "shuffled", 1e-4, "updates") == [pytest.approx(0.7 - 0.55)]


def test_a_third_arm_changes_nothing_between_two() -> None:
    """QB took as many updates as shuffled; that RB took fewer is no affair of theirs."""
    runs = by_run(
        run("shuffled", 0, [0.4, 0.5, 0.6], 4)
        + run("QB", 0, [0.4, 0.5, 0.7], 4)
        + run("RB", 0, [0.4, 0.5, 0.7], 1)
    )
    assert differences(runs, "QB", "shuffled", 1e-4, "updates") == [pytest.approx(0.1)]


def test_a_run_shorter_than_its_partner_is_read_at_its_own_end() -> None:
    runs = by_run(run("shuffled", 0, [0.4, 0.5, 0.9], 4) + run("QB", 0, [0.4, 0.6], 4))
    assert differences(runs, "QB", "shuffled", 1e-4, "rollouts") == [pytest.approx(0.1)]


def test_differences_are_paired_by_seed() -> None:
    """Seeds differ by 0.2, arms by 0.01, 0.02, 0.03: the pairs see it. Seed 7 has no partner."""
    records: list[Record] = run("QB", 7, [0.1, 0.1, 0.1], 4)
    for seed in range(3):
        end = 0.5 + 0.2 * seed
        records += run("shuffled", seed, [0.4, 0.5, end], 4)
        records += run("QB", seed, [0.4, 0.5, end + 0.01 * (seed + 1)], 4)
    (one,) = compare(by_run(records), "QB", "shuffled")
    half = quantile(0.975, 2) * 0.01 / math.sqrt(3)
    assert one.rollouts.value == pytest.approx(0.02)
    assert (one.rollouts.low, one.rollouts.high) == pytest.approx((0.02 - half, 0.02 + half))
    assert one.updates.value == pytest.approx(0.02)
    assert "over 3 seeds" in told(one)


def test_comparisons_share_the_error() -> None:
    records: list[Record] = []
    for rate in (1e-4, 4e-4):
        for seed in range(3):
            records += run("shuffled", seed, [0.4, 0.5, 0.6], 4, rate)
            records += run("QB", seed, [0.4, 0.5, 0.6 + 0.01 * seed], 4, rate)
    runs = by_run(records)
    assert rates(runs) == [1e-4, 4e-4]
    first, second = compare(runs, "QB", "shuffled")
    half = quantile(1 - 0.05 / 4, 2) * 0.01 / math.sqrt(3)
    assert first.rollouts.high - first.rollouts.value == pytest.approx(half)
    assert second.rate == 4e-4
    wide, _ = compare(runs, "QB", "shuffled", family=12)
    half = quantile(1 - 0.05 / 24, 2) * 0.01 / math.sqrt(3)
    assert wide.rollouts.high - wide.rollouts.value == pytest.approx(half)


@pytest.mark.parametrize(
    ("gain", "noise", "better", "worse"),
    [
        (0.05, 0.001, "replicated", "not replicated"),
        (-0.05, 0.001, "not replicated", "replicated"),
        (0.0, 0.001, "not replicated", "not replicated"),
        (0.0, 0.1, "inconclusive", "inconclusive"),
    ],
)
def test_verdicts(gain: float, noise: float, better: str, worse: str) -> None:
    records: list[Record] = []
    for seed in range(4):
        end = 0.6 + gain + noise * (-1) ** seed
        records += run("shuffled", seed, [0.4, 0.6], 4) + run("QB", seed, [0.4, end], 4)
    found = compare(by_run(records), "QB", "shuffled")
    assert verdict(found, "better", 0.02) == better
    assert verdict(found, "worse", 0.02) == worse


def test_nothing_to_compare_is_inconclusive() -> None:
    assert verdict([], "better", 0.02) == "inconclusive"
