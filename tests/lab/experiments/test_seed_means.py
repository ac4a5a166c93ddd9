"""Curves of seeds as one."""

from __future__ import annotations

import math

import pytest
from lab.experiments.made_up import run

from counterpoise.lab.experiments.curves import AMOUNT_RANGE, SHARE_RANGE, group_by_run
from counterpoise.lab.experiments.curves import value_range as column_range
from counterpoise.lab.experiments.measures import ANY_RANGE
from counterpoise.lab.experiments.seed_means import mean_curve, mean_over_seeds
from counterpoise.statistics.student import student_mean, t_quantile


def test_mean_and_interval_by_hand() -> None:
    runs = group_by_run(run("QB", 0, [0.4, 0.5], 4) + run("QB", 1, [0.4, 0.7], 2))
    start, end = mean_curve(runs, "QB", 1e-4, "heldout", "updates")
    assert (start["at"], start["value"], start["low"], start["high"]) == (0, 0.4, 0.4, 0.4)
    assert end["at"] == 3  # 4 and 2 updates by then
    assert (end["value"], end["low"], end["high"]) == (pytest.approx(0.6), 0.0, 1.0)


def test_an_interval_is_cut_to_what_can_be() -> None:
    """0.5 and 0.7: far beyond a share; an amount has no upper end, a gain has neither."""
    half = t_quantile(0.975, 1) * 0.2 / math.sqrt(2) / math.sqrt(2)
    cases = {
        SHARE_RANGE: (0.0, 1.0),
        AMOUNT_RANGE: (0.0, 0.6 + half),
        ANY_RANGE: (0.6 - half, 0.6 + half),
    }
    for possible, bounds in cases.items():
        found = mean_over_seeds([0.5, 0.7], possible)
        assert (found.value, found.n) == (pytest.approx(0.6), 2)
        assert (found.low, found.high) == pytest.approx(bounds)
    near = mean_over_seeds([0.5, 0.501, 0.502], SHARE_RANGE)
    assert near == student_mean([0.5, 0.501, 0.502])  # nothing to cut
    assert math.isnan(mean_over_seeds([0.5], SHARE_RANGE).low)
    assert (column_range("heldout@0.6/0.95"), column_range("entropy")) == (
        SHARE_RANGE,
        AMOUNT_RANGE,
    )


def test_one_seed_has_no_band_and_unknown_values_are_left_out() -> None:
    (found,) = mean_curve(group_by_run(run("QB", 0, [0.4, 0.5], 4)), "QB", 1e-4, "success")
    assert (found["value"], found["low"], found["high"]) == (0.5, 0.5, 0.5)


def test_an_iteration_that_only_some_seeds_have_is_left_out() -> None:
    runs = group_by_run(run("QB", 0, [0.4, 0.5, 0.6], 4) + run("QB", 1, [0.4, 0.7], 4))
    assert len(mean_curve(runs, "QB", 1e-4, "heldout")) == 2


def test_blocks_of_iterations() -> None:
    curve = run("QB", 0, [i / 10 for i in range(9)], 1)
    found = mean_curve(group_by_run(curve), "QB", 1e-4, "heldout", "updates", window=4)
    assert [p["at"] for p in found] == [3, 7]
    assert [p["value"] for p in found] == [pytest.approx(0.15), pytest.approx(0.55)]
