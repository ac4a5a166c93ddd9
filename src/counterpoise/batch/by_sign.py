"""Positive and negative rows in separate steps: the paper's Fig. 7a control, which no
cancellation between them survives.

Of k steps the positive rows get round(k * N+ / (N+ + N-)), and each sign at least one; each sign's
rows are shuffled and cut equally. If all rows with signal have one sign, it gets every step. Rows
without signal (A = 0) have no gradient and only count in a step's denominator: one by one they go
to the step with the fewest rows. With fewer rows with signal than steps, the steps left over hold
rows without signal alone: a saturated iteration must not end a run. The order of the steps is
random.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from counterpoise.errors import PoiseError
from counterpoise.types import Row


def compose(rows: Sequence[Row], num_steps: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    sign = np.array([row.sign for row in rows])
    positive, negative, silent = (rng.permutation(np.flatnonzero(sign == s)) for s in (1, -1, 0))
    for_positive = _steps_for_positive(len(positive), len(negative), num_steps)
    steps: list[list[int]] = []
    for part, count in ((positive, for_positive), (negative, num_steps - for_positive)):
        if count:
            steps += [cut.tolist() for cut in np.array_split(part, count)]
    fewest = [(len(step), s) for s, step in enumerate(steps)]
    heapq.heapify(fewest)
    for i in silent.tolist():
        size, s = fewest[0]
        steps[s].append(i)
        heapq.heapreplace(fewest, (size + 1, s))
    return [steps[s] for s in rng.permutation(num_steps)]


def _steps_for_positive(positive: int, negative: int, num_steps: int) -> int:
    if positive == 0 or negative == 0:
        return num_steps if positive else 0
    if num_steps == 1:
        raise PoiseError(
            "one step cannot keep positive and negative rows apart: raise batch.steps (poise plan: "
            "--steps) to 2 or more"
        )
    share = round(num_steps * positive / (positive + negative))
    return min(max(share, 1), num_steps - 1)


def broken(rows: Sequence[Row], steps: Sequence[Sequence[int]]) -> str:
    for s, step in enumerate(steps):
        if {1, -1} <= {rows[i].sign for i in step}:
            return f"step {s} holds rows of both signs"
    return ""
