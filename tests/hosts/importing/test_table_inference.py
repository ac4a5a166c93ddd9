"""Groups and reward columns that tables do not name, told by the advantages."""

from __future__ import annotations

import numpy as np
import pytest

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.table_inference import (
    group_rows,
    infer_reward_columns,
    parse_reward_columns,
    reward_formula,
)


def test_rows_stay_together_where_halves_are_no_groups() -> None:
    centred = np.array([1.0, -1.0])
    assert group_rows("aabbcccc", np.tile(centred, 4)) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    of_four = np.array([3.0, -1.0, -1.0, -1.0])
    mixed = np.concatenate([centred, centred, of_four])
    assert group_rows("aabbcccc", mixed) == [[0, 1], [2, 3], [4, 5, 6, 7]]
    assert group_rows("aabbccc", np.zeros(7)) == [[0, 1], [2, 3], [4, 5, 6]]
    assert group_rows("", np.zeros(0)) == []


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_columns_are_found_for_every_scale_of_rewards(scale: str) -> None:
    rng = np.random.default_rng(0)
    rewards = rng.integers(0, 2, (6, 4)).astype(float)
    form, extra = rng.random((6, 4)), rng.random((6, 4))
    totals = rewards + form
    std = {"group": totals.std(1, ddof=1, keepdims=True), "batch": totals.std(), "none": 1.0}[scale]
    A = (totals - totals.mean(1, keepdims=True)) / std
    groups = [
        {"right": rewards[g], "form": form[g], "extra": extra[g], "advantage": A[g]}
        for g in range(6)
    ]
    assert infer_reward_columns(groups, ["right", "form", "extra"]) == {"right": 1.0, "form": 1.0}


def test_equal_sums_of_different_parts_are_equal_rewards() -> None:
    """TRL's float32 sums differ in the last bit, and dividing by std + 1e-4 magnifies that."""
    a = np.array([0.9, 0.8, 1.0, 1.0, 0.5, 0.4, 0.4, 0.9], np.float32)
    b = np.array([0.5, 0.6, 0.4, 0.4, 0.9, 1.0, 1.0, 0.5], np.float32)
    sums = a + b
    A = (sums - sums.mean()) / (sums.std(ddof=1) + np.float32(1e-4))
    assert np.linalg.norm(A) > 1e-3
    groups = [
        {name: values.astype(float) for name, values in zip("abA", columns, strict=True)}
        for columns in ((a, b, A), (np.array([1, 0, 0]), np.array([0, 0, 1]), np.array([1, -2, 1])))
    ]
    for group in groups:
        group["advantage"] = group.pop("A")
    assert infer_reward_columns(groups, ["a", "b"]) == {"a": 1.0, "b": 1.0}


def test_reward_option() -> None:
    assert parse_reward_columns("a, b=-0.5", ["a", "b"]) == {"a": 1.0, "b": -0.5}
    with pytest.raises(PoiseError, match="unknown reward column 'c'"):
        parse_reward_columns("c", ["a", "b"])
    with pytest.raises(PoiseError, match="'x' is not a number"):
        parse_reward_columns("a=x", ["a", "b"])


def test_the_reward_in_words() -> None:
    assert reward_formula({"a": 1.0, "b": -0.5}) == "a + -0.5 * b"
