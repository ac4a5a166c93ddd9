"""Curves of seeds as one."""

from __future__ import annotations

import math

import pytest

from counterpoise.experiment.curves import by_run
from counterpoise.experiment.over_seeds import over_seeds
from counterpoise.statistics.student import quantile
from experiment.made_up import run


def test_mean_and_interval_by_hand() -> None:
    runs = by_run(run("QB", 0, [0.4, 0.5], 4) + run("QB", 1, [0.4, 0.7], 2))
    start, end = over_seeds(runs, "QB", 1e-4, "heldout", "updates")
    assert (start["at"], start["value"], start["low"], start["high"]) == (0, 0.4, 0.4, 0.4)
    assert end["at"] == 3  # 4 and 2 updates by then
    half = quantile(0.975, 1) * 0.2 / math.sqrt(2) / math.sqrt(2)
    assert (end["value"], end["high"]) == (pytest.approx(0.6), pytest.approx(0.6 + half))


def test_one_seed_has_no_band_and_unknown_values_are_left_out() -> None:
    (found,) = over_seeds(by_run(run("QB", 0, [0.4, 0.5], 4)), "QB", 1e-4, "success")
    assert (found["value"], found["low"], found["high"]) == (0.5, 0.5, 0.5)


def test_an_iteration_that_only_some_seeds_have_is_left_out() -> None:
    runs = by_run(run("QB", 0, [0.4, 0.5, 0.6], 4) + run("QB", 1, [0.4, 0.7], 4))
    assert len(over_seeds(runs, "QB", 1e-4, "heldout")) == 2


def test_blocks_of_iterations() -> None:
    curve = run("QB", 0, [i / 10 for i in range(9)], 1)
    found = over_seeds(by_run(curve), "QB", 1e-4, "heldout", "updates", window=4)
    assert [p["at"] for p in found] == [3, 7]
    assert [p["value"] for p in found] == [pytest.approx(0.15), pytest.approx(0.55)]
