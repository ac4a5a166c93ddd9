"""All rows in one step: nothing is split, and the update is strictly on-policy."""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.errors import PoiseError
from counterpoise.types import Row


def compose(rows: Sequence[Row], num_steps: int, seed: int) -> list[list[int]]:
    if num_steps != 1:
        raise PoiseError(
            f"rule 'whole' makes one step, not {num_steps}: "
            "set batch.steps (poise plan: --steps) to 1 or choose another composer"
        )
    return [list(range(len(rows)))]
