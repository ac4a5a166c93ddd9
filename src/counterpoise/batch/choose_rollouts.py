"""Reward balance by rollout: |B| = T exactly, surplus rollouts dropped inside groups.

    take     the k oldest groups, with the smallest k such that N+ + N- >= T and
             min(N+, N-) >= tau T
    keep     K+ of the positive rows and T - K+ of the negative: K+ as near to T/2 as the
             available rows and tau allow, so the majority sign is dropped first
    drop     row by row from the group with most rows of that sign (among equals, the youngest),
             never the last row of its sign in a group that has both
    then     a group that lost rows is re-centred (recentre.py), unless signs are those of rewards

Inside a group and sign the rows sampled last are dropped: responses to one prompt are exchangeable,
so this introduces no selection.

A mixed group, one that has both signs, always keeps a row of each. There is room for that: the
first k - 1 groups have fewer than T rows, or fewer than tau T <= T/2 of one sign, hence fewer than
T/2 mixed groups among them, and group k adds at most one. Only if T is odd can that make
(T + 1) / 2 mixed groups: then |B| = T + 1. A group of a single sign (credit that does not sum to
zero) may lose all its rows.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from counterpoise.batch.balance_signs import SignRule, advantage_sign
from counterpoise.batch.buffer import minority_quota
from counterpoise.batch.recentre import recentre
from counterpoise.types import Row

SignCounts = tuple[int, int]  # positive and negative rows of a group


def choose_rollouts(
    groups: Sequence[tuple[Row, ...]],
    target: int,
    tau: float,
    sign_of: SignRule = advantage_sign,
) -> list[tuple[int, tuple[Row, ...]]] | None:
    """(index, kept rows) of every group taken, oldest first; None while no batch is possible."""
    quota = minority_quota(tau, target)
    sign_counts = _count_signs_of_oldest(groups, target, quota, sign_of)
    if sign_counts is None:
        return None
    total_positive = sum(positive for positive, _ in sign_counts)
    total_negative = sum(negative for _, negative in sign_counts)
    # Every mixed group keeps a row of each sign, hence at least two rows per mixed group.
    num_mixed = sum(mixed_group_floors(sign_counts))
    batch_size = max(target, 2 * num_mixed)
    least_positive = max(num_mixed, quota, batch_size - total_negative)
    most_positive = min(total_positive, batch_size - quota, batch_size - num_mixed)
    num_positive = min(max(batch_size // 2, least_positive), most_positive)
    return keep_of_each_sign(groups, sign_counts, num_positive, batch_size - num_positive, sign_of)


def count_signs(group: Sequence[Row], sign_of: SignRule) -> SignCounts:
    num_positive = sum(sign_of(row) > 0 for row in group)
    return num_positive, len(group) - num_positive


def mixed_group_floors(sign_counts: Sequence[SignCounts]) -> list[int]:
    """The fewest rows of each sign that a group keeps: 1 if it has both signs, else 0."""
    return [int(positive > 0 and negative > 0) for positive, negative in sign_counts]


def keep_of_each_sign(
    groups: Sequence[tuple[Row, ...]],
    sign_counts: Sequence[SignCounts],
    num_positive: int,
    num_negative: int,
    sign_of: SignRule,
) -> list[tuple[int, tuple[Row, ...]]]:
    """(index, kept rows) of each counted group; the numbers to keep are totals over all groups."""
    floors = mixed_group_floors(sign_counts)
    kept_positive = _lower_to_total([counts[0] for counts in sign_counts], floors, num_positive)
    kept_negative = _lower_to_total([counts[1] for counts in sign_counts], floors, num_negative)
    return [
        (group_index, _first_of_each_sign(groups[group_index], positive, negative, sign_of))
        for group_index, (positive, negative) in enumerate(
            zip(kept_positive, kept_negative, strict=True)
        )
    ]


def _count_signs_of_oldest(
    groups: Sequence[tuple[Row, ...]], target: int, quota: int, sign_of: SignRule
) -> list[SignCounts] | None:
    """(positive, negative) rows of each of the oldest groups, as few groups as are enough.

    They are enough if they have `target` rows in all and `quota` of each sign; None if not even
    all groups together have them.
    """
    sign_counts: list[SignCounts] = []
    total_positive = total_negative = 0
    for group in groups:
        group_positive, group_negative = count_signs(group, sign_of)
        sign_counts.append((group_positive, group_negative))
        total_positive += group_positive
        total_negative += group_negative
        has_enough_rows = total_positive + total_negative >= target
        if has_enough_rows and min(total_positive, total_negative) >= quota:
            return sign_counts
    return None


def _lower_to_total(counts: list[int], floors: list[int], total: int) -> list[int]:
    """Lower the largest counts, none below its floor, until they sum to `total`."""
    lowered_counts = list(counts)
    largest_first = [
        (-count, -group_index)
        for group_index, count in enumerate(counts)
        if count > floors[group_index]
    ]
    heapq.heapify(largest_first)
    for _ in range(sum(counts) - total):
        group_index = -largest_first[0][1]
        lowered_counts[group_index] -= 1
        if lowered_counts[group_index] > floors[group_index]:
            heapq.heapreplace(largest_first, (-lowered_counts[group_index], -group_index))
        else:
            heapq.heappop(largest_first)
    return lowered_counts


def _first_of_each_sign(
    group: tuple[Row, ...], positives: int, negatives: int, sign_of: SignRule
) -> tuple[Row, ...]:
    """The first rows of each sign, in order.

    If any row is dropped, the others are re-centred, unless signs are those of rewards.
    """
    if positives + negatives == len(group):
        return group
    remaining_of_sign = {1: positives, -1: negatives}
    first_rows = []
    for row in group:
        if remaining_of_sign[sign_of(row)]:
            remaining_of_sign[sign_of(row)] -= 1
            first_rows.append(row)
    return recentre(first_rows) if sign_of is advantage_sign else tuple(first_rows)
