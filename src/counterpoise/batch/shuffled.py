"""A random permutation of the rows, cut into equal steps: TRL, once a generation spans several.

Groups are cut apart: with k steps a row's group mate shares its step with probability about 1/k.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.types import Row


def compose(rows: Sequence[Row], num_steps: int, seed: int) -> list[list[int]]:
    order = np.random.default_rng(seed).permutation(len(rows))
    return [step.tolist() for step in np.array_split(order, num_steps)]
