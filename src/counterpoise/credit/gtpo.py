"""GTPO: tokens in conflict are kept where they succeeded, and spared where not. arXiv:2508.03772

    w_{i,t} = f_{i,t} b_{i,t} e_i
    f = 2 in right rollouts, 0 in wrong ones, as long as from the start on every (position, token)
        occurs in a right and in a wrong rollout of the group; 1 after the first that does not
    b = the same, positions counted from the end
    e = (A_i - penalty H_i) / A_i if H_i <= ceiling, else 0;     H_i: mean entropy of the rollout

This is cancellation undone on purpose: of what right and wrong rollouts share, only the push of the
right ones is left. A token in conflict from both ends counts 2 * 2 = 4 in a right rollout.

boost 2, penalty 0.1, ceiling 0.7 (about ln 2): the authors' code. It also divides a rollout's loss
by its number of conflict tokens and has no ratio: that is the business of `update`, and left out.
With penalty 0 and ceiling inf no policy is needed. A positive A below penalty * H turns its sign:
the method says so. A group of one sign has no conflicts: f = b = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from counterpoise.credit.view import CreditView, unit_weights
from counterpoise.types import Floats, Row


def weights(
    view: CreditView, *, boost: float = 2.0, penalty: float = 0.1, ceiling: float = 0.7
) -> list[Floats]:
    found = unit_weights(view.rows)
    for group in view.groups:
        rows = [view.rows[i] for i in group]
        for step in (1, -1):  # from the start, from the end
            for i, run in zip(group, conflict_lengths(rows, step), strict=True):
                from_here = found[i][::step]  # a view: changes are made in place
                from_here[:run] *= boost if view.rows[i].sign > 0 else 0
    if penalty or ceiling < np.inf:
        for row, w_T, entropies_T in zip(view.rows, found, view.entropies, strict=True):
            w_T *= _entropy_factor(row.advantage, float(entropies_T.mean()), penalty, ceiling)
    return found


def conflict_lengths(rows: Sequence[Row], step: int) -> list[int]:
    """How many tokens from the start (step 1) or the end (-1) are in conflict, for every row."""
    responses = [row.content.response_tokens[::step].tolist() for row in rows]
    right: set[tuple[int, int]] = set()
    wrong: set[tuple[int, int]] = set()
    for row, response in zip(rows, responses, strict=True):
        (right if row.sign > 0 else wrong).update(enumerate(response))
    both = right & wrong
    return [sum(1 for _ in takewhile(both.__contains__, enumerate(r))) for r in responses]


def _entropy_factor(advantage: float, entropy: float, penalty: float, ceiling: float) -> float:
    return (advantage - penalty * entropy) / advantage if entropy <= ceiling else 0.0
