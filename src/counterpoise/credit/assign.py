"""Group -> rows: the advantage of each rollout, and the weights of its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.credit import ADVANTAGES, WEIGHTS
from counterpoise.types import Group, Row


def assign(groups: Sequence[Group], advantage: str, weights: str = "uniform") -> list[list[Row]]:
    """Rows of every group, in the order they were sampled. A_{i,t} = A_i * w_{i,t}."""
    advantages_of, weights_of = ADVANTAGES.load(advantage), WEIGHTS.load(weights)
    rows: list[list[Row]] = []
    for group in groups:
        advantages_G = advantages_of(group.rewards_G)
        weights_G = weights_of(group) or [None] * len(group.rollouts)
        rows.append(
            [
                Row(
                    group=group.key,
                    advantage=float(advantage_i),
                    num_tokens=len(rollout.response_tokens),
                    index=i,
                    born=group.iteration,
                    rollout=rollout,
                    weights_T=weights_T,
                )
                for i, (rollout, advantage_i, weights_T) in enumerate(
                    zip(group.rollouts, advantages_G, weights_G, strict=True)
                )
            ]
        )
    return rows
