"""QB (query-preserved mini-batches): every group in one step, token loads as equal as possible.

A group's advantages sum to zero, so what its rollouts share cancels, but only inside one optimizer
step: a step that holds part B of a group keeps the residue S_B = sum of A over B (eq. 14).

Group loads (sums of `num_tokens`) are split by Karmarkar-Karp into steps of equally many groups,
give or take one: a step stays the fixed number of prompts that people expect (the paper's 32).
Equal counts are given up only where one step would be more than 2 % above the mean, as when one
group is nearly as heavy as a step; a group heavier than a step cannot be balanced away at all.
The seed decides ties and the order of the steps. Rows of a group stay next to each other. Groups
that an agent's trajectory joins count as one (`batch/units.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.batch.partition import partition
from counterpoise.batch.units import rows_by_unit
from counterpoise.errors import PoiseError, format_count
from counterpoise.types import Row

MAX_IMBALANCE = 1.02  # heaviest step over mean, above which equal group counts are given up


def compose(rows: Sequence[Row], num_steps: int, seed: int) -> list[list[int]]:
    """Whole groups in steps of nearly equal token load."""
    return place_units(rows, rows_by_unit(rows), num_steps, seed)


def place_units(
    rows: Sequence[Row], units: Sequence[Sequence[int]], num_steps: int, seed: int
) -> list[list[int]]:
    """Steps of nearly equal token load that keep every unit, a list of row indices, together."""
    if len(units) < num_steps:
        raise PoiseError(
            f"{format_count(len(units), 'whole group')} cannot fill {num_steps} steps: lower "
            "num_steps (batch.steps; poise plan: --steps) or sample more prompts"
        )
    # The partition works on whole units, so no plan can split one.
    token_loads = [sum(rows[row_index].num_tokens for row_index in unit) for unit in units]
    units_per_step = partition(token_loads, num_steps, np.random.default_rng(seed), MAX_IMBALANCE)
    return [
        [row_index for unit_index in sorted(step_units) for row_index in units[unit_index]]
        for step_units in units_per_step
    ]
