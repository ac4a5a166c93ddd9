"""Composer `half_groups`: every group cut into two random halves that go to different steps.

It lies between `grouped`, where a group's advantages cancel inside one step, and `shuffled`, where
the rows of a group rarely meet. With G rows per group, two of them share a step with probability
(G/2 - 1) / (G - 1), so the expected cross-advantage ratio (describe.py) is -3/7 for G = 8.
`grouped` has -1, `shuffled` with k steps about -1/k.

Groups are dealt to the steps in random order: a first half to the next step in turn, its second
half to one of the other steps, by an offset that changes after each round of steps. Steps therefore
hold equally many halves, give or take one or two. A group of one row has one half. Needs at least
as many groups as steps, and two steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.errors import PoiseError, format_count
from counterpoise.types import Row, rows_by_group


def compose(rows: Sequence[Row], num_steps: int, seed: int) -> list[list[int]]:
    """Deal the halves of every group to two different steps."""
    if num_steps == 1:
        raise PoiseError(
            "one step cannot separate the two halves of a group: raise batch.steps (poise plan: "
            "--steps) to 2 or more"
        )
    rng = np.random.default_rng(seed)
    groups = list(rows_by_group(rows).values())
    if len(groups) < num_steps:
        raise PoiseError(
            f"{format_count(len(groups), 'group')} cut in halves cannot fill {num_steps} steps "
            "evenly: lower num_steps (batch.steps; poise plan: --steps) or sample more prompts"
        )
    steps: list[list[int]] = [[] for _ in range(num_steps)]
    for turn, group_index in enumerate(rng.permutation(len(groups)).tolist()):
        # One offset for a whole round of steps: every step then gets equally many second halves.
        if turn % num_steps == 0:
            offset = int(rng.integers(1, num_steps))
        shuffled_rows = rng.permutation(groups[group_index]).tolist()
        middle = (len(shuffled_rows) + 1) // 2
        first_step = turn % num_steps
        steps[first_step] += shuffled_rows[:middle]
        steps[(first_step + offset) % num_steps] += shuffled_rows[middle:]
    return steps


def find_uneven_split(rows: Sequence[Row], steps: Sequence[Sequence[int]]) -> str:
    """Describe the first group that is not cut into two halves; empty if there is none."""
    part_sizes_by_group: dict[str, list[int]] = {}
    for step in steps:
        rows_in_step: dict[str, int] = {}
        for row_index in step:
            rows_in_step[rows[row_index].group] = rows_in_step.get(rows[row_index].group, 0) + 1
        for group, count in rows_in_step.items():
            part_sizes_by_group.setdefault(group, []).append(count)
    for group, part_sizes in part_sizes_by_group.items():
        group_size = sum(part_sizes)
        if sorted(part_sizes) != sorted(
            size for size in (group_size - group_size // 2, group_size // 2) if size
        ):
            return f"group '{group}' has parts of {part_sizes} rows, not two halves"
    return ""
