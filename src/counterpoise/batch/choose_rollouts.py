"""Reward balance by rollout: |B| = T exactly, surplus rollouts dropped inside groups.

    take     the shortest run of oldest groups with N+ + N- >= T and min(N+, N-) >= tau T
    keep     K+ rows of the positive and T - K+ of the negative: K+ as near to T/2 as
             the rows at hand and tau allow, so the majority sign is dropped first
    where    row after row from the group that has most rows of that sign (of equals, the youngest),
             never the last row of its sign in a group that has both
    then     a group that lost rows is re-centred (recentre.py)

Inside a group and sign the last sampled rows go: responses to one prompt are exchangeable, so this
selects nothing. Keeping one row of each sign in every group of both never stands in the way: before
its last group the run had fewer than T rows, or fewer than tau T of one sign, hence at most T/2
such groups. One exception: T odd and (T + 1) / 2 groups of one positive and one negative row each
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
    """(index, kept rows) of every group taken, oldest first; None while no batch can be made."""
    quota = minority_quota(tau, target)
    counts: list[tuple[int, int]] = []  # (positive, negative) of each group of the run
    positive = negative = mixed = 0
    for group in groups:
        p = sum(row.advantage > 0 for row in group)
        n = len(group) - p
        counts.append((p, n))
        positive, negative, mixed = positive + p, negative + n, mixed + (p > 0 and n > 0)
        if positive + negative >= target and min(positive, negative) >= quota:
            break
    else:
        return None
    size = max(target, 2 * mixed)
    least = max(mixed, quota, size - negative)
    most = min(positive, size - quota, size - mixed)
    keep = min(max(size // 2, least), most)
    floors = [int(p > 0 and n > 0) for p, n in counts]
    positives = _lower_to_total([p for p, _ in counts], floors, keep)
    negatives = _lower_to_total([n for _, n in counts], floors, size - keep)
    return [
        (g, _first_of_each_sign(groups[g], p, n))
        for g, (p, n) in enumerate(zip(positives, negatives, strict=True))
    ]


def _lower_to_total(counts: list[int], floors: list[int], total: int) -> list[int]:
    """Lower the largest counts, none below its floor, until they sum to `total`."""
    kept = list(counts)
    largest = [(-count, -g) for g, count in enumerate(counts) if count > floors[g]]
    heapq.heapify(largest)
    for _ in range(sum(counts) - total):
        g = -largest[0][1]
        kept[g] -= 1
        if kept[g] > floors[g]:
            heapq.heapreplace(largest, (-kept[g], -g))
        else:
            heapq.heappop(largest)
    return kept


def _first_of_each_sign(group: tuple[Row, ...], positives: int, negatives: int) -> tuple[Row, ...]:
    """The first rows of each sign, in order, re-centred if any was dropped."""
    if positives + negatives == len(group):
        return group
    left = {1: positives, -1: negatives}
    kept = []
    for row in group:
        if left[row.sign]:
            left[row.sign] -= 1
            kept.append(row)
    return recentre(kept)
