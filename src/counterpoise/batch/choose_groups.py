"""Reward balance by whole groups: a subset B of groups, none of them trimmed, with

    T <= |B| < T + (size of the largest group)   and   min(N+(B), N-(B)) >= tau |B|

A subset is returned if and only if one exists. T is `target`. Groups are ordered oldest first;
B comes from the shortest prefix of that order that contains such a subset. Within the prefix the
smallest |B| is preferred, then the best balanced, then the oldest groups of each kind.

Only a group's kind (rows, positive rows) matters, and there are few kinds (7 for groups of 8 and
0/1 rewards), so this is a bounded knapsack over kinds. Bit `size * size_limit + positives` of one
long integer says whether a subset with these totals exists; taking c groups of a kind is a shift.
Sizes are counted in units of their greatest common divisor. Time and memory grow with T^2 times the
number of kinds: milliseconds for T = 1024.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from counterpoise.batch.balance_signs import SignRule, advantage_sign
from counterpoise.batch.buffer import minority_quota
from counterpoise.types import Row

Kind = tuple[int, int]  # rows, positive rows


def choose_groups(
    groups: Sequence[tuple[Row, ...]],
    target: int,
    tau: float,
    sign_of: SignRule = advantage_sign,
) -> list[tuple[int, tuple[Row, ...]]] | None:
    """(index, rows) of every group taken, oldest first; None while no batch is possible."""
    kinds = [(len(group), sum(sign_of(row) > 0 for row in group)) for group in groups]
    shortest_prefix = _shortest_possible_prefix(kinds, target, tau)
    if shortest_prefix is None:
        return None
    size_limit = target + max(size for size, _ in kinds)
    # A longer prefix has every subset of a shorter one: bisection finds the first that works.
    prefix_lengths = range(shortest_prefix, len(kinds) + 1)
    prefix_index = bisect_left(
        prefix_lengths,
        True,
        key=lambda length: _count_per_kind(kinds[:length], target, size_limit, tau) is not None,
    )
    if prefix_index == len(prefix_lengths):
        return None
    count_per_kind = _count_per_kind(kinds[: prefix_lengths[prefix_index]], target, size_limit, tau)
    assert count_per_kind is not None, "the bisection found a prefix that makes a batch"
    selection = []
    # Within a kind the oldest groups are taken.
    for group_index, kind in enumerate(kinds):
        if count_per_kind[kind] > 0:
            count_per_kind[kind] -= 1
            selection.append((group_index, groups[group_index]))
    return selection


def _shortest_possible_prefix(kinds: list[Kind], target: int, tau: float) -> int | None:
    """Length of the shortest prefix of the groups that may hold a batch; shorter ones cannot.

    It has `target` rows, and as many of each sign as a batch of `target` needs.
    """
    total_rows = total_positive = 0
    quota = minority_quota(tau, target)
    for prefix_length, (group_rows, group_positive) in enumerate(kinds, 1):
        total_rows, total_positive = total_rows + group_rows, total_positive + group_positive
        if total_rows >= target and min(total_positive, total_rows - total_positive) >= quota:
            return prefix_length
    return None


def _count_per_kind(
    kinds: list[Kind], target: int, size_limit: int, tau: float
) -> Counter[Kind] | None:
    """How many groups of each kind make a batch; None if no subset does."""
    size_unit = math.gcd(*(size for size, _ in kinds))
    bundles = _binary_bundles(kinds, size_limit)
    shifts = [
        (rows * count // size_unit) * size_limit + positives * count
        for (rows, positives), count in bundles
    ]
    size_mask = (1 << (-(-size_limit // size_unit) * size_limit)) - 1  # keeps sizes below the limit
    reachable_totals = [1]  # after each bundle: the totals that some subset reaches
    for shift in shifts:
        reachable_totals.append((reachable_totals[-1] | reachable_totals[-1] << shift) & size_mask)
    total = _best_total(reachable_totals[-1], size_unit, target, size_limit, tau)
    if total is None:
        return None
    # Walk back: a bundle was needed exactly if the total was not reachable without it.
    count_per_kind: Counter[Kind] = Counter()
    bundle_steps = list(zip(bundles, shifts, reachable_totals[:-1], strict=True))
    for (kind, count), shift, reachable_before in reversed(bundle_steps):
        if not reachable_before >> total & 1:
            count_per_kind[kind] += count
            total -= shift
    return count_per_kind


def _binary_bundles(kinds: list[Kind], size_limit: int) -> list[tuple[Kind, int]]:
    """Each kind in bundles of 1, 2, 4, ... and a remainder: their subsets make every count."""
    bundles = []
    for kind, available in Counter(kinds).items():
        remaining, bundle_size = min(available, size_limit // kind[0]), 1
        while remaining > 0:
            count = min(bundle_size, remaining)
            bundles.append((kind, count))
            remaining, bundle_size = remaining - count, bundle_size * 2
    return bundles


def _best_total(
    reachable_totals: int, size_unit: int, target: int, size_limit: int, tau: float
) -> int | None:
    """The bit of the smallest reachable size from `target` on, and of the best balance for it."""
    for size_index in range(-(-target // size_unit), -(-size_limit // size_unit)):
        size = size_index * size_unit
        quota = minority_quota(tau, size)
        reachable_positives = reachable_totals >> size_index * size_limit
        allowed_positives = [
            positives
            for positives in range(quota, size - quota + 1)
            if reachable_positives >> positives & 1
        ]
        if allowed_positives:
            return size_index * size_limit + min(
                allowed_positives, key=lambda positives: abs(2 * positives - size)
            )
    return None
