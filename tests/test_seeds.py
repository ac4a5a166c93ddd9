"""Seeds: fixed numbers, so that a run made today can be resumed tomorrow, and no shared streams."""

from __future__ import annotations

import numpy as np

from counterpoise.seeds import rng_for, seed_for


def test_seeds_are_the_same_on_every_machine_and_in_every_version() -> None:
    assert seed_for(0, "sample") == 3_822_965_570_972_356_514
    assert seed_for(7, "compose", 12, 3) == 3_629_294_864_537_500_737
    assert rng_for(0, "sample").integers(1000, size=3).tolist() == [257, 919, 267]


def test_every_argument_counts() -> None:
    seeds = {
        seed_for(run, stage, step, index)
        for run in range(5)
        for stage in ("sample", "compose", "prompts", "evaluate")
        for step in range(50)
        for index in range(50)
    }
    assert len(seeds) == 5 * 4 * 50 * 50
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_bits_are_evenly_set() -> None:
    seeds = np.array([seed_for(0, "sample", 1, i) for i in range(4000)])
    share = np.array([(seeds >> bit & 1).mean() for bit in range(63)])
    assert abs(share - 0.5).max() < 5 * 0.5 / 4000**0.5


def test_global_random_state_is_left_alone() -> None:
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    rng_for(1, "sample").random(10)
    assert (np.random.get_state()[1] == before).all()
