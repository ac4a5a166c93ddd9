"""Experimental: |B| = T with as few rows of the rarer sign as groups allow.

    rarer, other    rows of the rarer and of the other sign in the k oldest groups
    mixed           how many of these groups have both signs
    R               = min(rarer, max(mixed, tau T))      rows of the rarer sign that the batch keeps
    take            the k oldest groups, with the smallest k such that other + R >= T
    keep            R rows of the rarer sign and T - R of the other; the rest are dropped in the
                    order of choose_rollouts.py

tau is here the share that the rarer sign is held down to: 0.1 makes batches of 10 / 90. Every group
with both signs keeps a row of each, so that it still sums to zero when it is re-centred. Without
that, such batches would differ from balanced ones in two ways: few rows of one sign, and groups
whose advantages do not cancel. So groups of G rows allow a share of about 1 / G at least: 12.5 %
with groups of 8.

If T is odd and (T + 1) / 2 mixed groups are taken, |B| = T + 1, as in choose_rollouts.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.batch.balance_signs import SignRule, advantage_sign
from counterpoise.batch.buffer import minority_quota
from counterpoise.batch.choose_rollouts import (
    SignCounts,
    count_signs,
    keep_of_each_sign,
)
from counterpoise.types import Row


def choose_anti_rollouts(
    groups: Sequence[tuple[Row, ...]],
    target: int,
    tau: float,
    sign_of: SignRule = advantage_sign,
) -> list[tuple[int, tuple[Row, ...]]] | None:
    """(index, kept rows) of every group taken, oldest first; None while no batch is possible."""
    quota = minority_quota(tau, target)
    sign_counts: list[SignCounts] = []
    num_positive = num_negative = num_mixed = 0
    for group in groups:
        group_positive, group_negative = count_signs(group, sign_of)
        sign_counts.append((group_positive, group_negative))
        num_positive += group_positive
        num_negative += group_negative
        num_mixed += group_positive > 0 and group_negative > 0
        num_rarer, num_other = sorted((num_positive, num_negative))
        kept_rarer = min(num_rarer, max(num_mixed, quota))
        if num_other + kept_rarer < target:
            continue
        # Every mixed group keeps two rows, which may be one more than an odd target.
        kept_other = max(target, 2 * num_mixed) - kept_rarer
        is_positive_rarer = num_positive <= num_negative
        kept_positive, kept_negative = (
            (kept_rarer, kept_other) if is_positive_rarer else (kept_other, kept_rarer)
        )
        return keep_of_each_sign(groups, sign_counts, kept_positive, kept_negative, sign_of)
    return None
