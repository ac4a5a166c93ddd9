"""Lay a plan's rows out over ranks, so that verl executes the plan.

verl gives rank r the r-th part of the batch's rows, and every rank takes the same number of rows
from the front of its part for each optimizer step. So a step of the plan becomes a block of rows on
each rank; a step with fewer rows is filled up with rows that train nothing. Within a step the loads
of the ranks are balanced, which affects speed but not the gradient.

    rows of rank r   | block of step 0 | block of step 1 | ...
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.batch.partition import partition
from counterpoise.types import BatchPlan


def block_size(
    plan: BatchPlan, ranks: int, micro_batch: int = 1, divisors: Sequence[int] = ()
) -> int:
    """Rows of a step on one rank: the fewest that hold the largest step in whole micro-batches.

    `divisors`: numbers that must divide the rows of a rank over all steps.

    Example:
        >>> plan = BatchPlan("grouped", (tuple(range(5)), tuple(range(5, 8))))
        >>> block_size(plan, ranks=2), block_size(plan, ranks=2, micro_batch=2)
        (3, 4)
    """
    rows_per_rank = -(-max(len(step) for step in plan.steps) // ranks)
    block = -(-rows_per_rank // micro_batch) * micro_batch
    # verl's scoring passes cut all rows of a rank into equal micro-batches.
    while any(block * len(plan.steps) % size for size in divisors):
        block += micro_batch
    return block


def order_rows(
    plan: BatchPlan, loads_R: Sequence[int], ranks: int, block: int, filler_load: int, seed: int
) -> list[int]:
    """Row indices in the order that verl distributes; indices from len(loads_R) on are fillers.

    `loads_R` is the cost of each row, `filler_load` that of a filler.

    Example:
        >>> plan = BatchPlan("grouped", ((0, 1), (2,)))
        >>> order_rows(plan, [9, 5, 7], ranks=2, block=1, filler_load=1, seed=0)
        [0, 2, 1, 3]
    """
    rng = np.random.default_rng(seed)
    rows_by_rank: list[list[int]] = [[] for _ in range(ranks)]
    next_filler = len(loads_R)
    for step in plan.steps:
        missing = ranks * block - len(step)
        rows = [*step, *range(next_filler, next_filler + missing)]
        next_filler += missing
        loads = [loads_R[row] if row < len(loads_R) else filler_load for row in rows]
        for rank, positions in enumerate(_balance_ranks(loads, ranks, rng)):
            rows_by_rank[rank] += [
                rows[position]
                for position in sorted(positions, key=lambda position: (-loads[position], position))
            ]
    return [row for rank_rows in rows_by_rank for row in rank_rows]


def _balance_ranks(loads: list[int], ranks: int, rng: np.random.Generator) -> list[list[int]]:
    """Equal counts with similar loads; the largest load first, so equal plans give equal orders."""
    shares = partition(loads, ranks, rng)
    return sorted(shares, key=lambda share: (-sum(loads[j] for j in share), share))


def executed_plan(is_row: Sequence[bool], ranks: int, block: int, composer: str) -> BatchPlan:
    """The plan that verl executes, read off the order itself: which rows share a step.

    `is_row` is False where the order has a filler; rows are numbered in their order.

    Example:
        >>> executed_plan([True, True, True, False], ranks=2, block=1, composer="verl").steps
        ((0, 2), (1,))
    """
    rank_size = len(is_row) // ranks
    steps: list[list[int]] = [[] for _ in range(rank_size // block)]
    row = 0
    # Each rank's part is a sequence of blocks, one for each step.
    for position, is_real in enumerate(is_row):
        if is_real:
            steps[position % rank_size // block].append(row)
            row += 1
    return BatchPlan(composer, tuple(tuple(step) for step in steps))
