"""Algorithm 2: one checkpoint, one batch, two updates that differ only in whose tokens push.

    positive   A+_i = A_i 1[A_i > 0]       negative rollouts are kept at weight 0, so that every
    joint      A_i                         denominator and every batch layout is the same

After each the displacement of *all* tokens is measured, those without weight included, and the
weights go back to the checkpoint. Both read log-probabilities in the same layout, so an update of
nothing moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from counterpoise.microscope.batch_tokens import Snapshot, take_snapshot
from counterpoise.model.load import Policy
from counterpoise.model.swapped_weights import unchanged
from counterpoise.types import Row

UpdateFunction = Callable[
    [Sequence[Row]], object
]  # changes the policy's weights by one step on the rows


@dataclass(frozen=True, slots=True, eq=False)
class PolarityDisplacements:
    """Delta log p of every token of the batch [N], under each update.

    Example:
        found = polarity(policy, rows, update)
        by_sign(found.positive.numpy(), found.before.advantages.numpy())
    """

    before: Snapshot
    positive: Tensor
    joint: Tensor


def measure_polarity(
    policy: Policy,
    rows: Sequence[Row],
    update: UpdateFunction,
    *,
    temperature: float = 1.0,
    micro_tokens: int = 16384,
) -> PolarityDisplacements:
    """Run `update` on the positive rows alone and on all; the policy is unchanged afterwards."""
    before = take_snapshot(policy, rows, temperature, micro_tokens)
    moved = []
    for batch in (without_negative_advantages(rows), rows):
        with unchanged(policy.model):
            update(batch)
            after = take_snapshot(policy, rows, temperature, micro_tokens)
            moved.append(after.logprobs - before.logprobs)
    return PolarityDisplacements(before, *moved)


def without_negative_advantages(rows: Sequence[Row]) -> list[Row]:
    """The same rows, those with a negative advantage at 0."""
    return [row if row.advantage > 0 else replace(row, advantage=0.0) for row in rows]
