"""Advantages and groups from lists, numpy arrays and tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from counterpoise.credit.advantages import advantages
from counterpoise.credit.array_inputs import to_group_numbers
from counterpoise.errors import PoiseError
from counterpoise.variants import ADVANTAGES

REWARDS = [1.0, 0.25, 0.0, 0.5, 0.0, 1.0, 0.0]
GROUPS = ["b", "a", "b", "a", "b", "a", "c"]


@pytest.mark.parametrize("method", ADVANTAGES)
def test_each_group_by_itself(method: str) -> None:
    """The members of a group need not be neighbours; each is computed as the function computes."""
    computed = advantages(REWARDS, GROUPS, method)
    for name in set(GROUPS):
        members = [i for i, group in enumerate(GROUPS) if group == name]
        alone = ADVANTAGES.load(method)(np.array([REWARDS[i] for i in members]))
        np.testing.assert_array_equal(computed[members], alone)


def test_the_result_is_of_the_kind_of_the_rewards() -> None:
    array = advantages(np.array(REWARDS, dtype=np.float32), GROUPS)
    assert (type(array), array.dtype) == (np.ndarray, np.float64)
    for dtype, expected in {
        torch.float64: torch.float64,
        torch.float32: torch.float32,
        torch.bfloat16: torch.bfloat16,
        torch.int64: torch.float32,
        torch.bool: torch.float32,
    }.items():
        tensor = advantages(torch.tensor([1, 0, 0, 1]).to(dtype), 4, "dr_grpo")
        assert tensor.dtype == expected
        assert tensor.tolist() == [0.5, -0.5, -0.5, 0.5]


@pytest.mark.parametrize(
    "groups",
    [
        [5, 5, 3, 3],
        np.array([5, 5, 3, 3]),
        torch.tensor([5, 5, 3, 3]),
        [torch.tensor(label) for label in (5, 5, 3, 3)],
        2,
        np.int64(2),
    ],
)
def test_groups_are_labels_or_a_size(groups) -> None:
    assert to_group_numbers(groups, 4).tolist() == [0, 0, 1, 1]


def test_no_rollouts() -> None:
    assert advantages([], []).tolist() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((REWARDS, GROUPS, "gpro"), "unknown credit 'gpro': did you mean 'grpo'"),
        ((REWARDS, GROUPS[:-1]), "groups has 6 entries for 7 rows"),
        ((REWARDS, 4), "groups: 7 rows are not whole groups of 4"),
        ((REWARDS, 0), "groups: 7 rows are not whole groups of 0"),
        ((REWARDS, None), "groups needs one number or name for each row"),
        (([1.0, np.inf], 2), "rewards must be finite, but row 1 has inf"),
        (([[1.0, 0.0]], 2), r"rewards needs one number for each row, \[R\], not \[1, 2\]"),
        ((["right", "wrong"], 2), "rewards is not an array of numbers"),
        (([[1.0], [1.0, 2.0]], 2), "rewards is not an array of numbers"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: tuple, message: str) -> None:
    with pytest.raises(PoiseError, match=f"^{message}"):
        advantages(*arguments)
