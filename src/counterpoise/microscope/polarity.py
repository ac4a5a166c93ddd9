"""Algorithm 2: two updates from one checkpoint and batch, with and without negative rollouts.

    positive   A+_i = A_i 1[A_i > 0]
    joint      A_i

In the first, negative rollouts stay with weight 0, so that every denominator is the same. After
each update the displacement of *all* tokens is measured, including those without weight, and the
model's weights are restored. Log-probabilities are read in the same layout each time, so an update
that changes nothing displaces nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from counterpoise.microscope.batch_tokens import Snapshot, take_snapshot
from counterpoise.model.load import Policy
from counterpoise.model.swapped_weights import restored_weights
from counterpoise.types import Row

# Applies one update step on the rows to the policy's weights.
UpdateFunction = Callable[[Sequence[Row]], object]


@dataclass(frozen=True, slots=True, eq=False)
class PolarityDisplacements:
    """Delta log p of every token of the batch [N], under each update.

    Example:
        result = measure_polarity(policy, rows, update)
        shares_by_sign(result.positive.numpy(), result.before.advantages.numpy())
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
    """Run `update` without negative advantages, then with them; weights are restored each time."""
    snapshot_before = take_snapshot(policy, rows, temperature, micro_tokens)
    displacements = []
    for batch in (without_negative_advantages(rows), rows):
        # Both updates start from the same weights and are read in the same batch layout.
        with restored_weights(policy.model):
            update(batch)
            snapshot_after = take_snapshot(policy, rows, temperature, micro_tokens)
            displacements.append(snapshot_after.logprobs - snapshot_before.logprobs)
    return PolarityDisplacements(snapshot_before, *displacements)


def without_negative_advantages(rows: Sequence[Row]) -> list[Row]:
    """The same rows with negative advantages set to 0."""
    return [row if row.advantage > 0 else replace(row, advantage=0.0) for row in rows]
