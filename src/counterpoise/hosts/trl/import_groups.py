"""Find the groups of TRL's rollouts, which its files do not name.

Rows with equal prompts are a group, unless a prompt was drawn more than once in a generation. All
groups of a generation have one size G, and the advantages of each sum to zero. So where most
prompts have G rows and another has k G, these are k groups, in the order of the rows, if the
advantages of each sum to zero. If they do not (an evaluation's rows are among them), the rows of
that prompt stay together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

SUM_TOLERANCE = 1e-3  # TRL computes advantages in float32, over std + 1e-4


def group_rows(prompts: Sequence[str], advantages: np.ndarray) -> list[list[int]]:
    """The rows of each group; groups of one prompt are next to each other.

    Example:
        >>> group_rows(["a", "a", "b", "b", "a", "a"], np.array([1.0, -1, 0, 0, 2, -2]))
        [[0, 1], [4, 5], [2, 3]]
    """
    rows_by_prompt: dict[str, list[int]] = {}
    for row, prompt in enumerate(prompts):
        rows_by_prompt.setdefault(prompt, []).append(row)
    sizes = Counter(map(len, rows_by_prompt.values()))
    # The most frequent size; among equally frequent ones the smallest: others may be multiples.
    group_size = max(sizes, key=lambda size: (sizes[size], -size), default=1)
    groups: list[list[int]] = []
    for rows in rows_by_prompt.values():
        blocks = [rows[start : start + group_size] for start in range(0, len(rows), group_size)]
        several_groups = len(rows) % group_size == 0 and all(
            _sums_to_zero(advantages[block]) for block in blocks
        )
        groups.extend(blocks if several_groups else [rows])
    return groups


def _sums_to_zero(advantages_G: np.ndarray) -> bool:
    finite_G = np.nan_to_num(advantages_G)
    return bool(abs(finite_G.sum()) <= SUM_TOLERANCE * max(1.0, np.abs(finite_G).sum()))
