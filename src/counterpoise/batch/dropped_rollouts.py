"""Which rollouts were dropped, and why.

    no_spread    dynamic sampling: the group's rewards were all equal, another took its place
    no_signal    reward balance: its sign is 0 (balance_signs.py); batch.drop_silent: advantage 0
    surplus      reward balance: too many of its sign, or beyond the batch's size
    aged         reward balance: waited for more than max_age iterations

All other rollouts are in the batch or wait in the buffer. Drops are found by comparing the rows
before and after, independently of the buffer's own counts; a test checks that the two agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from counterpoise.batch.balance_signs import SignRule, advantage_sign
from counterpoise.types import Group, Row

DROP_REASONS = ("no_spread", "no_signal", "surplus", "aged")
DropsByReason = dict[str, list[tuple[str, int]]]  # reason -> (group, index) of each rollout


def find_drops(
    without_spread: Sequence[Group],
    rows: Iterable[Row],
    batch: Sequence[Row],
    waiting: Sequence[Row],
    oldest: int,
    sign_of: SignRule = advantage_sign,
) -> DropsByReason:
    """(group, index) of the dropped rollouts by reason; reasons that dropped nothing are omitted.

    `rows` existed before the batch was taken, `waiting` are left in the buffer; rows born before
    iteration `oldest` are too old; `sign_of` is what reward balance counts.
    """
    drops: DropsByReason = {reason: [] for reason in DROP_REASONS}
    drops["no_spread"] = [
        (group.key, index) for group in without_spread for index in range(len(group.rollouts))
    ]
    # Whatever was there before and is neither used nor waiting has been dropped.
    surviving_names = {row.name for row in (*batch, *waiting)}
    for row in rows:
        if row.name not in surviving_names:
            reason_to_leave = "surplus" if row.born >= oldest else "aged"
            # A row of neither sign never waits, so it is neither surplus nor too old.
            drops[reason_to_leave if sign_of(row) else "no_signal"].append(row.name)
    return {reason: row_names for reason, row_names in drops.items() if row_names}
