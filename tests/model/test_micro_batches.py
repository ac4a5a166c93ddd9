"""How a step is cut into passes: every row once, within the limit, those of a prompt together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.model.flash import find_segments
from counterpoise.model.scoring import micro_batches, pack_rows
from counterpoise.types import Row

POLICY = tiny.policy()


def sharing(rows: list[Row], groups: dict[str, str]) -> list[Row]:
    """Some groups ask what another does."""
    prompts = {row.group: row.content.prompt_tokens for row in rows}
    return [
        replace(
            row,
            rollout=replace(
                row.content, prompt_tokens=prompts[groups.get(row.group, row.group)].copy()
            ),
        )
        for row in rows
    ]


@given(st.integers(0, 50), st.integers(1, 6), st.integers(1, 400), st.booleans())
def test_every_row_once_and_within_the_limit(
    seed: int, groups: int, micro_tokens: int, shared: bool
) -> None:
    rows = tiny.rows(groups=groups, size=3, seed=seed)
    rows = sharing(rows, {"p2": "p0", "p4": "p0"}) if shared else rows
    passes = list(micro_batches(rows, micro_tokens))
    assert sorted(i for batch in passes for i in batch) == list(range(len(rows)))
    for batch in passes:
        made = pack_rows(POLICY, [rows[i] for i in batch])
        read = sum(rows[i].num_tokens_read for i in batch) + sum(n for _, n in made.prompts)
        assert read <= micro_tokens or len(batch) == 1
        assert find_segments(made) is not None  # flash attention can take it


def test_groups_with_one_prompt_share_it() -> None:
    """In a buffer, or in a file with duplicates: the prompt is computed and counted once."""
    rows = sharing(tiny.rows(groups=4, size=3), {"p2": "p0"})
    (batch,) = micro_batches(rows, 10_000)
    asked = [rows[i].group for i in batch]
    assert asked == ["p3"] * 3 + ["p0"] * 3 + ["p2"] * 3 + ["p1"] * 3
    distinct = {row.content.prompt_tokens.tobytes(): row.content.prompt_tokens for row in rows}
    tokens = sum(map(len, distinct.values())) + sum(row.num_tokens_read for row in rows)
    assert len(list(micro_batches(rows, tokens))) == 1
    assert len(list(micro_batches(rows, tokens - 1))) == 2


@pytest.mark.parametrize("micro_tokens", [1, 40, 10_000])
def test_groups_are_walked_by_their_longest_row(micro_tokens: int) -> None:
    rows = tiny.rows(groups=5, size=4, seed=3)
    walked = [i for batch in micro_batches(rows, micro_tokens) for i in batch]
    longest = {
        row.group: max(r.num_tokens_read for r in rows if r.group == row.group) for row in rows
    }
    assert [longest[rows[i].group] for i in walked] == sorted(longest[row.group] for row in rows)
    assert np.array_equal([i // 4 for i in walked], np.repeat([i // 4 for i in walked[::4]], 4))
