"""Chooses which rows of an iteration the monitor measures, and whose pushes it stores.

Measuring costs a forward pass over the measured rows and products with the whole vocabulary, so a
large iteration is measured in part: forward passes of the update are drawn at random as long as
they hold at most `limit` tokens together, but at least one pass. A whole pass is the unit because
its rows can be read again exactly as the step read them: a displacement then comes from the step
and not from a different rounding. A step without a drawn pass is not measured. Passes are drawn
anew in every iteration, so no token is left out for good.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.model.scoring import micro_batches
from counterpoise.types import BatchPlan, Row, RowName


def choose_monitored_rows(
    batch: Sequence[Row],
    plan: BatchPlan,
    micro_tokens: int,
    limit: int,
    seed: int,
    *,
    all_rows: bool = False,
) -> frozenset[RowName] | None:
    """The rows to measure; None for all rows: they fit into `limit`, or `limit` is 0.

    `all_rows`: rows without an advantage take part in the loss too (a KL, an entropy bonus).
    """
    trained_rows = [
        [batch[index] for index in step if batch[index].has_loss(all_rows=all_rows)]
        for step in plan.steps
    ]
    if not limit or sum(row.num_tokens for rows in trained_rows for row in rows) <= limit:
        return None
    # The passes must be those of the update itself: same rows, same order, same micro-batch size.
    forward_passes = [
        [rows[index] for index in micro_batch]
        for rows in trained_rows
        for micro_batch in micro_batches(rows, micro_tokens)
    ]
    chosen_rows: set[RowName] = set()
    num_tokens = 0
    for pass_index in np.random.default_rng(seed).permutation(len(forward_passes)):
        pass_tokens = sum(row.num_tokens for row in forward_passes[pass_index])
        if chosen_rows and num_tokens + pass_tokens > limit:
            break
        chosen_rows.update(row.name for row in forward_passes[pass_index])
        num_tokens += pass_tokens
    return frozenset(chosen_rows)


def first_mixed_groups(rows: Sequence[Row], count: int) -> frozenset[str]:
    """The first `count` groups that have rows of both signs."""
    signs_by_group: dict[str, set[int]] = {}
    for row in rows:
        signs_by_group.setdefault(row.group, set()).add(row.sign)
    mixed_groups = [
        group for group, group_signs in signs_by_group.items() if {1, -1} <= group_signs
    ]
    return frozenset(mixed_groups[:count])
