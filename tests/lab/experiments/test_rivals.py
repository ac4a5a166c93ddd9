"""The weights of runs/embedded-rivals.toml, and that its pilot differs in rates and seeds alone."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
from one_by_one import made

from counterpoise.credit import negative_filter
from counterpoise.credit.view import CreditView
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
    computed = weights(ADVANTAGES, GROUPS, TOKENS, 1, shared=shared, drop=drop)
    assert ["".join(f"{weight:g}" for weight in row) for row in computed] == expected


@pytest.mark.parametrize("drop", ["wrong", "right", "both"])
def test_the_random_arm_leaves_out_as_many_tokens_of_each_rollout(drop: str) -> None:
    tokens = [np.arange(40) % 20, 5 + np.arange(60) % 25, 10 + np.arange(15)]
    advantages, groups = np.array([1.0, -0.5, -0.5]), np.zeros(3, int)
    by_token, first, again, later = (
        weights(advantages, groups, tokens, iteration, shared=shared, drop=drop)
        for shared, iteration in (("token", 1), ("random", 1), ("random", 1), ("random", 2))
    )
    assert [row.sum() for row in first] == [row.sum() for row in by_token]
    for row, same_row in zip(first, again, strict=True):
        np.testing.assert_array_equal(row, same_row)
    assert any((row != other).any() for row, other in zip(first, later, strict=True))


def test_the_wrong_side_by_token_is_the_built_in_filter_by_group() -> None:
    rows = [
        made("g", 0, 1.0, [7, 8]), made("g", 1, -1.0, [8, 9, 8, 3]), made("g", 2, -1.0, [4, 4]),
        made("h", 0, 2.0, [9]), made("h", 1, -2.0, [7, 9]),
    ]  # fmt: skip
    by_group = negative_filter.weights(CreditView(rows), support="group")
    computed = weights(
        np.array([row.advantage for row in rows]),
        np.array([0, 0, 0, 1, 1]),
        [row.content.response_tokens for row in rows],
        1,
        shared="token",
        drop="wrong",
    )
    for row, expected in zip(computed, by_group, strict=True):
        np.testing.assert_array_equal(row, expected)


def test_an_unknown_setting_is_refused() -> None:
    for settings in ({"shared": "prefx"}, {"drop": "left"}):
        with pytest.raises(ValueError, match="shared is one of token, prefix, random; drop one of"):
            weights(ADVANTAGES, GROUPS, TOKENS, 1, **settings)


def test_the_pilot_differs_in_its_rates_and_seeds_alone() -> None:
    experiment, pilot = read_experiment("embedded-rivals"), read_experiment("embedded-rivals-pilot")
    assert experiment.design.arms == pilot.design.arms
    assert experiment.run_config == pilot.run_config
    assert not set(experiment.design.seeds) & set(pilot.design.seeds)
