"""Rewards of a group -> advantages: closed forms, and exact zeros where there is no signal."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.credit.advantages import EPSILON
from counterpoise.variants import ADVANTAGES

REWARDS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=16)
BASELINE = sorted(set(ADVANTAGES) - {"w_reinforce"})  # those that compare with the group
SHIFTABLE = sorted(set(BASELINE) - {"maxrl", "f_grpo"})  # for the others 0 means failure


def advantages(name: str, *rewards: float) -> np.ndarray:
    return ADVANTAGES.load(name)(np.array(rewards, dtype=np.float64))


ONE_OF_TWO = {
    "grpo": [0.5 / (0.5**0.5 + EPSILON), -0.5 / (0.5**0.5 + EPSILON)],
    "dr_grpo": [0.5, -0.5],
    "rloo": [1.0, -1.0],
    "positive_only": [0.5 / (0.5**0.5 + EPSILON), 0.0],
}
STD_2_OF_8 = (8 * 0.25 * 0.75 / 7) ** 0.5  # unbiased
TWO_OF_EIGHT = {  # (of a right one, of a wrong one)
    "grpo": (0.75 / (STD_2_OF_8 + EPSILON), -0.25 / (STD_2_OF_8 + EPSILON)),
    "dr_grpo": (0.75, -0.25),
    "rloo": (1 - 1 / 7, -2 / 7),  # less the mean of the other seven
    "positive_only": (0.75 / (STD_2_OF_8 + EPSILON), 0.0),
}


@pytest.mark.parametrize("name", ONE_OF_TWO)
def test_one_right_of_two(name: str) -> None:
    np.testing.assert_allclose(advantages(name, 1, 0), ONE_OF_TWO[name], rtol=1e-14)


@pytest.mark.parametrize("name", TWO_OF_EIGHT)
def test_two_right_of_eight(name: str) -> None:
    right, wrong = TWO_OF_EIGHT[name]
    np.testing.assert_allclose(
        advantages(name, 0, 1, 0, 0, 0, 1, 0, 0),
        [wrong, right, wrong, wrong, wrong, right, wrong, wrong],
        rtol=1e-14,
    )


def test_float_rewards() -> None:
    rewards = [0.5, -1.0, 2.0, 0.5]  # mean 0.5, squares 0, 2.25, 2.25, 0: std = sqrt(1.5)
    np.testing.assert_allclose(advantages("dr_grpo", *rewards), [0, -1.5, 1.5, 0])
    np.testing.assert_allclose(advantages("rloo", *rewards), [0, -2.0, 2.0, 0])
    np.testing.assert_allclose(
        advantages("grpo", *rewards), np.array([0, -1.5, 1.5, 0]) / (1.5**0.5 + 1e-6)
    )
    np.testing.assert_allclose(
        advantages("positive_only", *rewards), np.array([0, 0, 1.5, 0]) / (1.5**0.5 + 1e-6)
    )


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=16))
def test_grpo_is_what_torch_computes(rewards: list[float]) -> None:
    r = torch.tensor(rewards, dtype=torch.float64)
    expected = ((r - r.mean()) / (r.std() + 1e-6)).numpy()
    if np.ptp(rewards) > 1e-9:
        np.testing.assert_allclose(advantages("grpo", *rewards), expected, rtol=1e-9, atol=1e-9)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=16))
def test_rloo_leaves_one_out(rewards: list[float]) -> None:
    others = [
        r - (sum(rewards[:i]) + sum(rewards[i + 1 :])) / (len(rewards) - 1)
        for i, r in enumerate(rewards)
    ]
    np.testing.assert_allclose(advantages("rloo", *rewards), others, atol=1e-10)


@pytest.mark.parametrize("name", BASELINE)
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3, -0.7, 1e-30, 123456.789])
@pytest.mark.parametrize("size", [2, 3, 8, 16])
def test_equal_rewards_give_exact_zeros(name: str, reward: float, size: int) -> None:
    found = advantages(name, *[reward] * size)  # 0.1 * 8 / 8 is not 0.1 in floating point
    assert found.tolist() == [0.0] * size


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
@given(st.lists(st.integers(-20, 20), min_size=2, max_size=16))
def test_signs_are_those_of_exact_arithmetic(name: str, tenths: list[int]) -> None:
    """The mean of 0.1, 0.2 and 0.3 is not 0.2 in floating point, and 0.2 has no signal."""
    mean = Fraction(sum(tenths), len(tenths))
    found = advantages(name, *(tenth / 10 for tenth in tenths))
    assert np.sign(found).tolist() == [(t > mean) - (t < mean) for t in tenths]


@pytest.mark.parametrize("name", BASELINE)
def test_a_group_of_one_has_no_baseline(name: str) -> None:
    assert advantages(name, 1.0).tolist() == [0.0]


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
@given(rewards=REWARDS)
def test_a_group_sums_to_zero(name: str, rewards: list[float]) -> None:
    found = advantages(name, *rewards)
    assert found.shape == (len(rewards),)
    assert found.dtype == np.float64
    assert abs(found.sum()) <= 1e-12 * max(1.0, np.abs(found).sum())


@given(right=st.integers(1, 15))
def test_squares_of_grpo_sum_to_the_group_less_one(right: int) -> None:
    found = advantages("grpo", *[1.0] * right, *[0.0] * (16 - right))
    assert (found**2).sum() == pytest.approx(15, rel=1e-4)


@pytest.mark.parametrize("name", SHIFTABLE)
@given(rewards=REWARDS, shift=st.sampled_from([0.5, -2.0, 8.0]))
def test_better_is_never_worse_and_a_shift_changes_nothing(
    name: str, rewards: list[float], shift: float
) -> None:
    rounded = np.round(rewards, 3)
    found = advantages(name, *rounded)
    assert (np.diff(found[np.argsort(rounded)]) >= -1e-9).all()
    np.testing.assert_allclose(advantages(name, *(rounded + shift)), found, atol=1e-6, rtol=1e-6)


@given(rewards=REWARDS)
def test_positive_only_is_grpo_without_its_negative_half(rewards: list[float]) -> None:
    grpo, positive = advantages("grpo", *rewards), advantages("positive_only", *rewards)
    assert (positive >= 0).all()
    assert (positive == np.where(grpo > 0, grpo, 0.0)).all()


@pytest.mark.parametrize("name", ADVANTAGES)
def test_the_rewards_are_left_alone(name: str) -> None:
    rewards = np.array([1.0, 0.0, 0.0])
    ADVANTAGES.load(name)(rewards)
    assert rewards.tolist() == [1.0, 0.0, 0.0]
