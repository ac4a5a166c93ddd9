"""Which tokens of an iteration the monitor looks at, and whose pushes it stores.

A look costs a forward pass of what is looked at and products with the whole vocabulary, so a large
iteration is looked at in part: passes of the update, drawn until they hold `limit` tokens, at
least one. A pass is the unit because its rows can be read again exactly as the step read them, so
a displacement is the step's doing and not that of another rounding. A step none of whose passes
was drawn is not looked at. Passes are drawn anew each time, so that every token has its turn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.model.scoring import micro_batches
from counterpoise.types import BatchPlan, Row

RowName = tuple[str, int]  # of a row: its group, and its place in it


def choose_monitored_rows(
    batch: Sequence[Row], plan: BatchPlan, micro_tokens: int, limit: int, seed: int
) -> frozenset[RowName] | None:
    """Rows to look at; None: all, because they are few enough, or because `limit` is 0."""
    signal = [[batch[i] for i in step if batch[i].sign] for step in plan.steps]
    if not limit or sum(row.num_tokens for rows in signal for row in rows) <= limit:
        return None
    passes = [
        [rows[i] for i in one] for rows in signal for one in micro_batches(rows, micro_tokens)
    ]
    drawn: set[RowName] = set()
    tokens = 0
    for number in np.random.default_rng(seed).permutation(len(passes)):
        more = sum(row.num_tokens for row in passes[number])
        if drawn and tokens + more > limit:
            break
        drawn.update(row.name for row in passes[number])
        tokens += more
    return frozenset(drawn)


def first_mixed_groups(rows: Sequence[Row], count: int) -> frozenset[str]:
    """The first groups that have rows of both signs."""
    signs: dict[str, set[int]] = {}
    for row in rows:
        signs.setdefault(row.group, set()).add(row.sign)
    mixed = [group for group, found in signs.items() if {1, -1} <= found]
    return frozenset(mixed[:count])
