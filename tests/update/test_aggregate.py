"""Coefficients c_i of L = sum_i c_i sum_t L_it, by hand and by what they sum to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.types import Row
from counterpoise.variants import AGGREGATIONS

# Two groups: 2 + 4 + 6 = 12 tokens and 8 tokens; 20 in all, four rows.
ROWS = [Row("a", 1.0, 2), Row("a", -1.0, 4), Row("b", 1.0, 8), Row("a", 0.0, 6)]
BY_HAND = {
    "token_mean": [1 / 20] * 4,
    "group_token_mean": [1 / 24, 1 / 24, 1 / 16, 1 / 24],
    "sequence_mean": [1 / 8, 1 / 16, 1 / 32, 1 / 24],
    "constant": [1 / 400] * 4,
}


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_by_hand(name: str) -> None:
    found = AGGREGATIONS.load(name)(ROWS, 100)
    assert found.dtype == np.float64
    assert found.tolist() == pytest.approx(BY_HAND[name])


LENGTHS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 50)), min_size=1, max_size=12
).map(lambda rows: [Row(group, 0.0, length) for group, length in rows])


@pytest.mark.parametrize("name", ["token_mean", "group_token_mean", "sequence_mean"])
@given(rows=LENGTHS)
def test_means_are_means(name: str, rows: list[Row]) -> None:
    """A loss of 1 on every token is a loss of 1."""
    coefficients = AGGREGATIONS.load(name)(rows, 64)
    assert sum(c * row.num_tokens for c, row in zip(coefficients, rows, strict=True)) == (
        pytest.approx(1.0)
    )


@given(rows=LENGTHS)
def test_constant_is_the_share_of_the_room_that_is_used(rows: list[Row]) -> None:
    coefficients = AGGREGATIONS.load("constant")(rows, 64)
    used = sum(c * row.num_tokens for c, row in zip(coefficients, rows, strict=True))
    assert used == pytest.approx(sum(row.num_tokens for row in rows) / (64 * len(rows)))


@given(rows=LENGTHS)
def test_groups_and_rows_weigh_the_same(rows: list[Row]) -> None:
    by_group = AGGREGATIONS.load("group_token_mean")(rows, 64)
    names = {row.group for row in rows}
    for name in names:
        weight = sum(
            c * row.num_tokens for c, row in zip(by_group, rows, strict=True) if row.group == name
        )
        assert weight == pytest.approx(1 / len(names))
    by_row = AGGREGATIONS.load("sequence_mean")(rows, 64)
    weights = [c * row.num_tokens for c, row in zip(by_row, rows, strict=True)]
    assert weights == pytest.approx([1 / len(rows)] * len(rows))


@given(length=st.integers(1, 50), rows=st.integers(1, 9))
def test_equal_lengths_make_all_means_equal(length: int, rows: int) -> None:
    batch = [Row("ab"[i % 2], 0.0, length) for i in range(2 * rows)]
    first, *others = (AGGREGATIONS.load(name)(batch, length).tolist() for name in AGGREGATIONS)
    assert all(other == pytest.approx(first) for other in others)
