"""A plan over ranks, as verl executes it.

verl hands rank r the r-th part of the batch's rows, and every rank takes the same number of rows
from the front of its part for each optimizer step. So a step of the plan becomes a block of rows on
each rank; a step with fewer rows is filled up with rows that train nothing. Inside a step the loads
of the ranks are balanced; that is speed only, never the gradient.

    rows of rank r   | block of step 0 | block of step 1 | ...
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.batch.partition import partition
from counterpoise.types import BatchPlan


def block_size(plan: BatchPlan, ranks: int, micro: int = 1, together: Sequence[int] = ()) -> int:
    """Rows of a step on one rank: the fewest that hold the largest step in whole micro-batches.

    `together`: sizes of which all the rows of a rank have to be a multiple.

    Example:
        >>> plan = BatchPlan("grouped", (tuple(range(5)), tuple(range(5, 8))))
        >>> block_size(plan, ranks=2), block_size(plan, ranks=2, micro=2)
        (3, 4)
    """
    needed = -(-max(len(step) for step in plan.steps) // ranks)
    block = -(-needed // micro) * micro
    while any(block * len(plan.steps) % size for size in together):
        block += micro
    return block


def lay_out(
    plan: BatchPlan, loads_R: Sequence[int], ranks: int, block: int, filler: int, seed: int
) -> list[int]:
    """Row indices in the order verl deals them out; those from len(loads_R) on are fillers.

    `loads_R` is what each row costs, `filler` what a filler does.

    Example:
        >>> lay_out(BatchPlan("grouped", ((0, 1), (2,))), [9, 5, 7], 2, 1, filler=1, seed=0)
        [0, 2, 1, 3]
    """
    rng = np.random.default_rng(seed)
    parts: list[list[int]] = [[] for _ in range(ranks)]
    following = len(loads_R)
    for step in plan.steps:
        missing = ranks * block - len(step)
        rows = [*step, *range(following, following + missing)]
        following += missing
        loads = [loads_R[i] if i < len(loads_R) else filler for i in rows]
        for rank, items in enumerate(_even(loads, ranks, rng)):
            parts[rank] += [rows[j] for j in sorted(items, key=lambda j: (-loads[j], j))]
    return [i for part in parts for i in part]


def _even(loads: list[int], ranks: int, rng: np.random.Generator) -> list[list[int]]:
    """Equal counts; the fullest first, so that equal plans look alike."""
    parts = partition(loads, ranks, rng)
    return sorted(parts, key=lambda part: (-sum(loads[j] for j in part), part))


def executed(kept: Sequence[bool], ranks: int, block: int, rule: str) -> BatchPlan:
    """The plan that verl executes, read off the order itself: which rows share a step.

    `kept` says of every place whether a row stands there, not a filler; rows are numbered in order.

    Example:
        >>> executed([True, True, True, False], ranks=2, block=1, rule="verl").steps
        ((0, 2), (1,))
    """
    share = len(kept) // ranks
    steps: list[list[int]] = [[] for _ in range(share // block)]
    row = 0
    for place, is_row in enumerate(kept):
        if is_row:
            steps[place % share // block].append(row)
            row += 1
    return BatchPlan(rule, tuple(tuple(step) for step in steps))
