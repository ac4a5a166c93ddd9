from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.model.coupling_sets import lay_out_sets


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=200),
    st.integers(1, 9),
    st.integers(0, 70),
)
def test_every_token_is_laid_out_once_and_with_all_of_its_set(
    keys: list[int], base: int, more: int
) -> None:
    key_N = np.array(keys)
    found = lay_out_sets(key_N, row_width=base, max_size=base + more)
    rows = [row[row < len(key_N)] for block in found.blocks for row in block]
    placed = np.concatenate([*rows, *found.large_sets])
    assert sorted(placed.tolist()) == list(range(len(key_N)))
    for members in (*rows, *found.large_sets):
        for key in np.unique(key_N[members]):
            assert (key_N[members] == key).sum() == (key_N == key).sum()
    assert all(block.shape[1] <= base + more for block in found.blocks)
    assert all(len(members) > base + more for members in found.large_sets)
    assert all(len(np.unique(key_N[members])) == 1 for members in found.large_sets)


def test_small_sets_share_rows_and_larger_ones_stand_among_their_like() -> None:
    sizes = (3, 1, 4, 4, 2, 9, 12, 30)
    key_N = np.repeat(np.arange(8), sizes)
    found = lay_out_sets(key_N, row_width=6, max_size=16)
    assert [block.shape for block in found.blocks] == [(3, 6), (2, 12)]
    assert [len(members) for members in found.large_sets] == [30]
    nobody = len(key_N)
    assert [int((row < nobody).sum()) for row in found.blocks[0]] == [4, 4, 6]
    assert (found.blocks[1] == nobody).sum() == 3
    assert lay_out_sets(key_N[:0], row_width=6, max_size=16).blocks == ()
