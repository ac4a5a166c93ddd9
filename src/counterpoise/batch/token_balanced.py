"""Steps of equal token count and equal row count (give or take one), groups ignored.

Karmarkar-Karp over the rows: what the paper says of verl, whose mini-batches are cut by token
count. It is the throughput optimum, and it scatters a group over the steps like a shuffle does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.batch.partition import partition
from counterpoise.types import Row


def compose(rows: Sequence[Row], num_steps: int, seed: int) -> list[list[int]]:
    loads = [row.num_tokens for row in rows]
    parts = partition(loads, num_steps, np.random.default_rng(seed))
    return [sorted(part) for part in parts]
