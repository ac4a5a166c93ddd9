"""Arms against each other: curves read at equal cost, differences by seed, verdicts."""

from __future__ import annotations

import math

import pytest
from lab.experiments.made_up import run

from counterpoise.lab.experiments.compare import (
    as_number,
    compare,
    describe_comparison,
    differences,
    judge_comparisons,
)
from counterpoise.lab.experiments.curves import group_by_run, learning_rates
from counterpoise.statistics.finding import Record
from counterpoise.statistics.student import t_quantile


def test_at_equal_rollouts_and_updates_by_hand() -> None:
    """RB took 6 updates, the other 8: its curve is read at 6, halfway between 4 and 8."""
    runs = group_by_run(run("shuffled", 0, [0.4, 0.5, 0.6], 4) + run("RB", 0, [0.4, 0.5, 0.7], 3))
    assert differences(runs, "RB", "shuffled", 1e-4, "rollouts") == [pytest.approx(0.1)]
    assert differences(runs, "RB", "shuffled", 1e-4, "updates") == [pytest.approx(0.7 - 0.55)]


def test_a_third_arm_changes_nothing_between_two() -> None:
    """QB took as many updates as shuffled; that RB took fewer is no affair of theirs."""
    runs = group_by_run(
        run("shuffled", 0, [0.4, 0.5, 0.6], 4)
        + run("QB", 0, [0.4, 0.5, 0.7], 4)
        + run("RB", 0, [0.4, 0.5, 0.7], 1)
    )
    assert differences(runs, "QB", "shuffled", 1e-4, "updates") == [pytest.approx(0.1)]


def test_a_run_shorter_than_its_partner_is_read_at_its_own_end() -> None:
    runs = group_by_run(run("shuffled", 0, [0.4, 0.5, 0.9], 4) + run("QB", 0, [0.4, 0.6], 4))
    assert differences(runs, "QB", "shuffled", 1e-4, "rollouts") == [pytest.approx(0.1)]


def test_differences_are_paired_by_seed() -> None:
    """Seeds differ by 0.2, arms by 0.01, 0.02, 0.03: the pairs see it. Seed 7 has no partner."""
    records: list[Record] = run("QB", 7, [0.1, 0.1, 0.1], 4)
    for seed in range(3):
        end = 0.5 + 0.2 * seed
        records += run("shuffled", seed, [0.4, 0.5, end], 4)
        records += run("QB", seed, [0.4, 0.5, end + 0.01 * (seed + 1)], 4)
    (one,) = compare(group_by_run(records), "QB", "shuffled")
    half = t_quantile(0.975, 2) * 0.01 / math.sqrt(3)
    assert one.rollouts.value == pytest.approx(0.02)
    assert (one.rollouts.low, one.rollouts.high) == pytest.approx((0.02 - half, 0.02 + half))
    assert one.updates.value == pytest.approx(0.02)
    assert "over 3 seeds" in describe_comparison(one)


def test_comparisons_share_the_error() -> None:
    records: list[Record] = []
    for rate in (1e-4, 4e-4):
        for seed in range(3):
            records += run("shuffled", seed, [0.4, 0.5, 0.6], 4, rate)
            records += run("QB", seed, [0.4, 0.5, 0.6 + 0.01 * seed], 4, rate)
    runs = group_by_run(records)
    assert learning_rates(runs) == [1e-4, 4e-4]
    first, second = compare(runs, "QB", "shuffled")
    half = t_quantile(1 - 0.05 / 4, 2) * 0.01 / math.sqrt(3)
    assert first.rollouts.high - first.rollouts.value == pytest.approx(half)
    assert second.rate == 4e-4
    wide, _ = compare(runs, "QB", "shuffled", family=12)
    half = t_quantile(1 - 0.05 / 24, 2) * 0.01 / math.sqrt(3)
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
    found = compare(group_by_run(records), "QB", "shuffled")
    assert judge_comparisons(found, "better", 0.02) == better
    assert judge_comparisons(found, "worse", 0.02) == worse


def pairs(ends: list[tuple[float, float]], **columns: float) -> list[Record]:
    """(QB, shuffled) at the end of every seed; `columns` are QB's alone."""
    records: list[Record] = []
    for seed, (mine, theirs) in enumerate(ends):
        records += run("QB", seed, [0.4, mine], 4, **columns)
        records += run("shuffled", seed, [0.4, theirs], 4)
    return records


def test_arms_that_made_the_same_runs_show_nothing() -> None:
    """Seeds differ, arms do not; the clock does not count, nor float32."""
    records = pairs([(0.6, 0.6), (0.7, 0.7 + 1e-8), (0.3, 0.3)], iteration_seconds=2.0)
    (one,) = compare(group_by_run(records), "QB", "shuffled")
    assert one.identical_runs
    assert describe_comparison(one) == (
        "at lr 0.0001 both arms made the same runs over 3 seeds: the option had no effect"
    )
    assert (
        judge_comparisons([one], "better", 0.02)
        == judge_comparisons([one], "worse", 0.02)
        == "inconclusive"
    )
    assert math.isnan(one.rollouts.low)
    assert (one.rollouts.value, one.rollouts.p) == (pytest.approx(0.0, abs=1e-8), 1.0)
    number = as_number("QB", one.rollouts)
    assert (number.low, number.high) == (None, None)


def test_the_same_difference_at_every_seed_decides_nothing() -> None:
    """The runs are not the same, but an interval without width would exclude everything else."""
    records = pairs([(0.65, 0.6), (0.75, 0.7), (0.35, 0.3)])
    (one,) = compare(group_by_run(records), "QB", "shuffled")
    assert not one.identical_runs
    assert one.rollouts.p == 1.0
    assert describe_comparison(one) == (
        "at lr 0.0001 +5.0 points at equal rollouts and +5.0 points at equal updates over 3 seeds, "
        "the same at every seed: without spread there is no verdict"
    )
    assert judge_comparisons([one], "better", 0.02) == "inconclusive"


def test_equal_success_of_runs_that_differ_is_not_the_same_run() -> None:
    (one,) = compare(group_by_run(pairs([(0.6, 0.6)] * 3, entropy=0.3)), "QB", "shuffled")
    assert not one.identical_runs
    assert "+0.0 points at equal rollouts" in describe_comparison(one)
    assert judge_comparisons([one], "better", 0.02) == "inconclusive"


def test_one_seed_that_differs_is_a_spread() -> None:
    """Of four seeds three made the same runs: that is what a rare option does."""
    (one,) = compare(group_by_run(pairs([(0.6, 0.6)] * 3 + [(0.601, 0.6)])), "QB", "shuffled")
    assert not one.identical_runs
    assert one.rollouts.low < 0 < one.rollouts.high < 0.02
    assert judge_comparisons([one], "better", 0.02) == "not replicated"


def test_nothing_to_compare_is_inconclusive() -> None:
    assert judge_comparisons([], "better", 0.02) == "inconclusive"
