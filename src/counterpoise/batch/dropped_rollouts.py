"""What became of every rollout: those of a plan were used, those named here were dropped, and why.

    no_spread    dynamic sampling: the group's rewards were all equal, another took its place
    no_signal    reward balance: advantage 0, never waits
    surplus      reward balance: too many of its sign, or beyond the batch's size
    aged         reward balance: waited for more than max_age iterations

The rest waits in the buffer. Found by comparing what there was with what there is, so that it also
checks the buffer's own counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from counterpoise.types import Group, Row

DROP_REASONS = ("no_spread", "no_signal", "surplus", "aged")
DropsByReason = dict[str, list[tuple[str, int]]]  # reason -> (group, index) of each rollout


def find_drops(
    without_spread: Sequence[Group],
    rows: Iterable[Row],
    batch: Sequence[Row],
    waiting: Sequence[Row],
    oldest: int,
) -> DropsByReason:
    """`rows` were there before the batch was taken; `waiting` are left; born before `oldest` is
    too old. Reasons that dropped nothing are left out.
    """
    found: DropsByReason = {reason: [] for reason in DROP_REASONS}
    found["no_spread"] = [
        (group.key, index) for group in without_spread for index in range(len(group.rollouts))
    ]
    stay = {row.name for row in (*batch, *waiting)}
    for row in rows:
        if row.name not in stay:
            reason = "surplus" if row.born >= oldest else "aged"
            found[reason if row.sign else "no_signal"].append(row.name)
    return {reason: names for reason, names in found.items() if names}
