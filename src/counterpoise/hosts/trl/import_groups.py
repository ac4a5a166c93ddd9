"""TRL's groups, which its files do not name: rows with equal prompts, unless a prompt was drawn
more than once in a generation.

All groups of a generation have one size G and sum_i A_i = 0 each. So where most prompts have G rows
and another has k G, these are k groups, in the order of the rows, if the advantages of each sum to
zero; if they do not (an evaluation's rows are among them), its rows stay together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

ROUNDING = 1e-3  # of a sum of advantages, which TRL computes in float32 and over std + 1e-4


def group_rows(prompts: Sequence[str], advantages: np.ndarray) -> list[list[int]]:
    """Rows of each group; those of one prompt stand next to each other.

    Example:
        >>> group_rows(["a", "a", "b", "b", "a", "a"], np.array([1.0, -1, 0, 0, 2, -2]))
        [[0, 1], [4, 5], [2, 3]]
    """
    members: dict[str, list[int]] = {}
    for i, prompt in enumerate(prompts):
        members.setdefault(prompt, []).append(i)
    sizes = Counter(map(len, members.values()))
    usual = max(sizes, key=lambda size: (sizes[size], -size), default=1)
    found: list[list[int]] = []
    for rows in members.values():
        cut = [rows[start : start + usual] for start in range(0, len(rows), usual)]
        several = len(rows) % usual == 0 and all(_centred(advantages[part]) for part in cut)
        found.extend(cut if several else [rows])
    return found


def _centred(advantages_G: np.ndarray) -> bool:
    known = np.nan_to_num(advantages_G)
    return bool(abs(known.sum()) <= ROUNDING * max(1.0, np.abs(known).sum()))
