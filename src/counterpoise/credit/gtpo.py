"""GTPO: tokens that right and wrong rollouts share are trained only in right ones. arXiv:2508.03772

    w_{i,t} = f_{i,t} b_{i,t} e_i
    f = 2 in right rollouts and 0 in wrong ones at the leading tokens, as long as each (position,
        token) occurs in a right and in a wrong rollout of the group; 1 from the first one on that
        does not
    b = the same for the trailing tokens, with positions counted from the end
    e = (A_i - penalty H_i) / A_i if H_i <= ceiling, else 0;     H_i: mean entropy of the rollout

This deliberately undoes cancellation: where right and wrong rollouts share tokens, only the push of
the right ones remains. A token in conflict from both ends counts 2 * 2 = 4 in a right rollout.

boost 2, penalty 0.1, ceiling 0.7 (about ln 2): the authors' code. It also divides a rollout's loss
by its number of conflict tokens and has no ratio; that would belong to `update` and is left out.
With penalty 0 and ceiling inf no policy is needed. A positive A below penalty * H flips its sign,
as the method prescribes. A group of one sign has no conflicts: f = b = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from counterpoise.credit.view import CreditView, unit_weights
from counterpoise.errors import PoiseError
from counterpoise.types import Floats, Ints


def weights(
    view: CreditView, *, boost: float = 2.0, penalty: float = 0.1, ceiling: float = 0.7
) -> list[Floats]:
    """Token weights of every row, from the tokens in conflict and the row's entropy."""
    if not 0 <= boost < np.inf or not 0 <= penalty < np.inf or not ceiling >= 0:
        raise PoiseError(
            "gtpo: set boost, penalty and ceiling to 0 or above, and only ceiling to inf, not "
            f"{boost:g}, {penalty:g} and {ceiling:g}"
        )
    row_weights, tokens = unit_weights(view.rows), view.tokens
    for group in view.groups:
        signs_G = [view.rows[i].sign for i in group]
        tokens_G = [tokens[i] for i in group]
        for direction in (1, -1):  # from the start, from the end
            lengths_G = conflict_lengths(signs_G, tokens_G, direction)
            for i, conflict_length in zip(group, lengths_G, strict=True):
                directed_weights = row_weights[i][::direction]  # a numpy view: changed in place
                directed_weights[:conflict_length] *= boost if view.rows[i].sign > 0 else 0
    # Entropies cost a pass of the policy: skip it where they cannot change anything.
    if penalty or ceiling < np.inf:
        for row, weights_T, entropies_T in zip(view.rows, row_weights, view.entropies, strict=True):
            weights_T *= _entropy_factor(row.advantage, float(entropies_T.mean()), penalty, ceiling)
    return row_weights


def conflict_lengths(signs_G: Sequence[int], tokens_G: Sequence[Ints], direction: int) -> list[int]:
    """Number of leading (direction 1) or trailing (-1) tokens in conflict, for every row."""
    responses = [tokens_T[::direction].tolist() for tokens_T in tokens_G]
    in_correct: set[tuple[int, int]] = set()
    in_wrong: set[tuple[int, int]] = set()
    for sign, response in zip(signs_G, responses, strict=True):
        (in_correct if sign > 0 else in_wrong).update(enumerate(response))
    in_both = in_correct & in_wrong
    return [
        sum(1 for _ in takewhile(in_both.__contains__, enumerate(response)))
        for response in responses
    ]


def _entropy_factor(advantage: float, entropy: float, penalty: float, ceiling: float) -> float:
    """e: the entropy penalty as a factor on the advantage."""
    return (advantage - penalty * entropy) / advantage if entropy <= ceiling else 0.0
