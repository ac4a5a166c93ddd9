"""The weights of runs/embedded-rivals.toml, and that its pilot differs in rates and seeds alone."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from counterpoise.lab.experiments.experiment_file import read_experiment

RUNS = Path(__file__).parents[3] / "runs"
weights = runpy.run_path(str(RUNS / "shared_tokens.py"))["weights"]

ADVANTAGES = np.array([0.9, -0.3, -0.6, 0.5, -0.5])
GROUPS = np.array([0, 0, 0, 1, 1])
TOKENS = [
    np.array([5, 6, 7, 8]),  # right
    np.array([5, 6, 9, 7]),  # wrong: begins alike, and has 7 elsewhere
    np.array([8, 1]),  # wrong: has 8 elsewhere
    np.array([5, 6]),  # right, in another group
    np.array([2, 2]),
]


@pytest.mark.parametrize(
    ("shared", "drop", "expected"),
    [
        ("token", "wrong", ["1111", "0010", "01", "11", "11"]),
        ("token", "right", ["0000", "1111", "11", "11", "11"]),
        ("token", "both", ["0000", "0010", "01", "11", "11"]),
        ("prefix", "wrong", ["1111", "0011", "11", "11", "11"]),
        ("prefix", "right", ["0011", "1111", "11", "11", "11"]),
        ("prefix", "both", ["0011", "0011", "11", "11", "11"]),
    ],
)
def test_what_right_and_wrong_rollouts_share_is_left_out(
    shared: str, drop: str, expected: list[str]
) -> None:
    computed = weights(ADVANTAGES, GROUPS, TOKENS, shared=shared, drop=drop)
    assert ["".join(f"{weight:g}" for weight in row) for row in computed] == expected


def test_the_pilot_differs_in_its_rates_and_seeds_alone() -> None:
    experiment, pilot = read_experiment("embedded-rivals"), read_experiment("embedded-rivals-pilot")
    assert experiment.design.arms == pilot.design.arms
    assert experiment.run_config == pilot.run_config
    assert not set(experiment.design.seeds) & set(pilot.design.seeds)
