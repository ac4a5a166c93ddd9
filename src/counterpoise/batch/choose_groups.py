"""Reward balance by whole groups: a subset B of groups, none of them trimmed, with

    T <= |B| < T + (size of the largest group)   and   min(N+(B), N-(B)) >= tau |B|

A subset is returned if and only if one exists. Of all such B: one inside the shortest run of oldest
groups that holds any; there the smallest |B|, then the best balanced, then the oldest groups of
each kind.

Only a group's kind (rows, positive rows) matters, and there are few kinds (7 for groups of 8 and
0/1 rewards), so this is a bounded knapsack over kinds. Bit `size * W + positives` of one long
integer says whether a subset with these totals exists; taking c groups of a kind is a shift. Sizes
are counted in their greatest common divisor. Time and memory grow with T^2 times the number of
kinds: milliseconds for T = 1024.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from counterpoise.batch.buffer import minority_quota
from counterpoise.types import Row

Kind = tuple[int, int]  # rows, positive rows


def choose_groups(
    groups: Sequence[tuple[Row, ...]], target: int, tau: float
) -> list[tuple[int, tuple[Row, ...]]] | None:
    """(index, rows) of every group taken, oldest first; None while no batch is possible."""
    kinds = [(len(group), sum(row.advantage > 0 for row in group)) for group in groups]
    shortest = _shortest_possible_run(kinds, target, tau)
    if shortest is None:
        return None
    limit = target + max(size for size, _ in kinds)
    runs = range(shortest, len(kinds) + 1)  # a longer run holds every subset of a shorter one
    run_index = bisect_left(
        runs,
        True,
        key=lambda length: _count_per_kind(kinds[:length], target, limit, tau) is not None,
    )
    count_per_kind = (
        _count_per_kind(kinds[: runs[run_index]], target, limit, tau)
        if run_index < len(runs)
        else None
    )
    if count_per_kind is None:
        return None
    selection = []
    # Within a kind the oldest groups are taken.
    for group_index, kind in enumerate(kinds):
        if count_per_kind[kind] > 0:
            count_per_kind[kind] -= 1
            selection.append((group_index, groups[group_index]))
    return selection


def _shortest_possible_run(kinds: list[Kind], target: int, tau: float) -> int | None:
    """Length of the shortest run of oldest groups with enough rows of each sign for any batch."""
    size = positive = 0
    quota = minority_quota(tau, target)
    for length, (rows, positives) in enumerate(kinds, 1):
        size, positive = size + rows, positive + positives
        if size >= target and min(positive, size - positive) >= quota:
            return length
    return None


def _count_per_kind(kinds: list[Kind], target: int, limit: int, tau: float) -> Counter[Kind] | None:
    """How many groups of each kind make a batch; None if no subset does."""
    unit = math.gcd(*(size for size, _ in kinds))
    bundles = _binary_bundles(kinds, limit)
    shifts = [(s * c // unit) * limit + p * c for (s, p), c in bundles]
    size_mask = (1 << (-(-limit // unit) * limit)) - 1  # keeps sizes below the limit
    reach = [1]  # after each bundle: the totals that some subset reaches
    for shift in shifts:
        reach.append((reach[-1] | reach[-1] << shift) & size_mask)
    total = _best_total(reach[-1], unit, target, limit, tau)
    if total is None:
        return None
    # Walk back: a bundle was needed exactly if the total was not reachable without it.
    count_per_kind: Counter[Kind] = Counter()
    for (kind, count), shift, reach_before in reversed(
        list(zip(bundles, shifts, reach[:-1], strict=True))
    ):
        if not reach_before >> total & 1:
            count_per_kind[kind] += count
            total -= shift
    return count_per_kind


def _binary_bundles(kinds: list[Kind], limit: int) -> list[tuple[Kind, int]]:
    """Each kind in bundles of 1, 2, 4, ... and a remainder: their subsets make every count."""
    bundles = []
    for kind, available in Counter(kinds).items():
        remaining, bundle = min(available, limit // kind[0]), 1
        while remaining > 0:
            count = min(bundle, remaining)
            bundles.append((kind, count))
            remaining, bundle = remaining - count, bundle * 2
    return bundles


def _best_total(reach: int, unit: int, target: int, limit: int, tau: float) -> int | None:
    """The bit of the smallest possible size from the target on, at its best balanced total."""
    for index in range(-(-target // unit), -(-limit // unit)):
        size = index * unit
        quota = minority_quota(tau, size)
        totals = reach >> index * limit
        reachable = [
            positives for positives in range(quota, size - quota + 1) if totals >> positives & 1
        ]
        if reachable:
            return index * limit + min(reachable, key=lambda positives: abs(2 * positives - size))
    return None
