"""Verdicts of the interventions on made-up runs."""

from __future__ import annotations

import numpy as np
import pytest
from lab.experiments.made_up import run

from counterpoise.lab.studies import interventions
from counterpoise.statistics.finding import Record


def records(
    gain: float, noise: float, seeds: int, rates: tuple[float, ...] = (1e-4,)
) -> list[Record]:
    rng = np.random.default_rng(0)
    made: list[Record] = []
    for rate in rates:
        for seed in range(seeds):
            for arm in interventions.TESTED_ARMS:
                end = 0.7 + noise * rng.normal() + (gain if arm == "QB+RB" else 0.0)
                made += run(arm, seed, [0.4, 0.55, end], 4, rate)
    return made


def test_a_clear_gain_replicates() -> None:
    assert interventions.judge(records(0.05, 0.005, seeds=8)).verdict == "replicated"


def test_at_one_rate_is_enough() -> None:
    made = records(0.0, 0.003, 8, (1e-4,)) + records(0.05, 0.005, 8, (4e-4,))
    found = interventions.judge(made)
    assert found.verdict == "replicated"
    assert "at lr 0.0001" in found.because
    assert "at lr 0.0004" in found.because


def test_no_gain_that_seeds_could_show() -> None:
    assert interventions.judge(records(0.0, 0.003, seeds=8)).verdict == "not replicated"


def test_two_noisy_seeds_say_nothing() -> None:
    found = interventions.judge(records(0.05, 0.03, seeds=2))
    assert found.verdict == "inconclusive"
    assert "smallest detectable" in found.because


def test_two_seeds_that_agree_by_chance_say_nothing() -> None:
    """Their interval has no width at all."""
    made = [r for arm in interventions.TESTED_ARMS for seed in range(2)
            for r in run(arm, seed, [0.4, 0.5, 0.7 if arm == "QB+RB" else 0.6], 4)]  # fmt: skip
    assert interventions.judge(made).verdict == "inconclusive"


def test_a_gain_by_more_updates_alone_does_not_count() -> None:
    """QB+RB is ahead at equal rollouts, but only because it took twice the updates."""
    made: list[Record] = []
    for seed in range(8):
        jitter = 0.002 * (seed % 3 - 1)
        for arm in interventions.TESTED_ARMS:
            if arm == "QB+RB":
                made += run(arm, seed, [0.4, 0.6 + jitter, 0.7], 8)
            else:
                made += run(arm, seed, [0.4, 0.5, 0.6], 4)
    assert interventions.judge(made).verdict == "inconclusive"


@pytest.mark.parametrize("rates", [(1e-4,), (1e-4, 4e-4)])
def test_figures(rates: tuple[float, ...]) -> None:
    figures = interventions.draw(records(0.0, 0.01, 2, rates))
    assert [f.title for f in figures][:3] == ["After training", "Against shuffled", "QB"]
