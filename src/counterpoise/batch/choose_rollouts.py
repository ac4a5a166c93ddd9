"""Reward balance by rollout: |B| = T exactly, surplus rollouts dropped inside groups.

    take     the shortest run of oldest groups with N+ + N- >= T and min(N+, N-) >= tau T
    keep     K+ of the positive rows and T - K+ of the negative: K+ as near to T/2 as the
             available rows and tau allow, so the majority sign is dropped first
    drop     row by row from the group with most rows of that sign (among equals, the youngest),
             never the last row of its sign in a group that has both
    then     a group that lost rows is re-centred (recentre.py)

Inside a group and sign the last sampled rows go: responses to one prompt are exchangeable, so this
introduces no selection. One row of each sign can always be kept in every mixed group: before its
last group the run had fewer than T rows, or fewer than tau T of one sign, hence at most T/2
mixed groups. One exception: T odd and (T + 1) / 2 groups of one positive and one negative row each
make |B| = T + 1. A group of a single sign (credit that does not sum to zero) may lose all its rows.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from counterpoise.batch.buffer import minority_quota
from counterpoise.batch.recentre import recentre
from counterpoise.types import Row


def choose_rollouts(
    groups: Sequence[tuple[Row, ...]], target: int, tau: float
) -> list[tuple[int, tuple[Row, ...]]] | None:
    """(index, kept rows) of every group taken, oldest first; None while no batch is possible."""
    quota = minority_quota(tau, target)
    # The shortest run of oldest groups that has enough rows of each sign.
    counts: list[tuple[int, int]] = []  # (positive, negative) of each group of the run
    positive = negative = num_mixed = 0
    for group in groups:
        p = sum(row.advantage > 0 for row in group)
        n = len(group) - p
        counts.append((p, n))
        positive, negative, num_mixed = positive + p, negative + n, num_mixed + (p > 0 and n > 0)
        if positive + negative >= target and min(positive, negative) >= quota:
            break
    else:
        return None
    # Every mixed group keeps a row of each sign, hence at least two rows per mixed group.
    batch_size = max(target, 2 * num_mixed)
    least_positive = max(num_mixed, quota, batch_size - negative)
    most_positive = min(positive, batch_size - quota, batch_size - num_mixed)
    num_positive = min(max(batch_size // 2, least_positive), most_positive)
    minimum_counts = [int(p > 0 and n > 0) for p, n in counts]
    positives = _lower_to_total([p for p, _ in counts], minimum_counts, num_positive)
    negatives = _lower_to_total([n for _, n in counts], minimum_counts, batch_size - num_positive)
    return [
        (g, _first_of_each_sign(groups[g], p, n))
        for g, (p, n) in enumerate(zip(positives, negatives, strict=True))
    ]


def _lower_to_total(counts: list[int], floors: list[int], total: int) -> list[int]:
    """Lower the largest counts, none below its floor, until they sum to `total`."""
    lowered = list(counts)
    largest = [
        (-count, -group_index)
        for group_index, count in enumerate(counts)
        if count > floors[group_index]
    ]
    heapq.heapify(largest)
    for _ in range(sum(counts) - total):
        group_index = -largest[0][1]
        lowered[group_index] -= 1
        if lowered[group_index] > floors[group_index]:
            heapq.heapreplace(largest, (-lowered[group_index], -group_index))
        else:
            heapq.heappop(largest)
    return lowered


def _first_of_each_sign(group: tuple[Row, ...], positives: int, negatives: int) -> tuple[Row, ...]:
    """The first rows of each sign, in order, re-centred if any was dropped."""
    if positives + negatives == len(group):
        return group
    remaining = {1: positives, -1: negatives}
    first_rows = []
    for row in group:
        if remaining[row.sign]:
            remaining[row.sign] -= 1
            first_rows.append(row)
    return recentre(first_rows)
