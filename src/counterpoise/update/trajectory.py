"""Weights of whole rollouts, made such that what a group shares cancels again (DFPO).

    w_i = exp(mean_t log rho_{i,t})        rho = pi / pi_old, by the weights as the step finds them

    min_replace    w~_i = min_j w_j                       sum_i A_i w~_i = w~ sum_i A_i = 0
    orthogonal     w~   = w - (A . w / |A|^2) A           sum_i A_i w~_i = 0
    off            w~_i = 1

over the rollouts of a group in the step. A sequence's ratio weighs each rollout otherwise, and a
clip cuts off one sign: both leave a residual on the tokens that right and wrong rollouts share. So
the step then is L = -sum_i c A_i w~_i sum_t log pi(o_t), with one c for all rollouts:
`update.surrogate = "reinforce"`, which has neither ratio nor clip, and `token_mean` or `constant`.
No gradient flows through w~. At a batch's first step the ratios of rows that these very weights
sampled are 1; those that waited in the buffer through an update have their own.

min_replace needs a group whose advantages sum to 0, whole in its step (QB). orthogonal does not,
and can give a rollout a negative weight; setting those to 0 would bring the residual back.

arXiv:2604.13088, "T1" and "T2", after readers' notes of the paper; the length-normalised ratio is
one of the two it allows for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from counterpoise.types import Floats, Row
from counterpoise.variants import TRAJECTORY_WEIGHTS

Doubles = NDArray[np.float64]


def off(ratios_G: Doubles, advantages_G: Doubles) -> Doubles:
    return np.ones_like(ratios_G)


def min_replace(ratios_G: Doubles, advantages_G: Doubles) -> Doubles:
    return np.full_like(ratios_G, ratios_G.min())


def orthogonal(ratios_G: Doubles, advantages_G: Doubles) -> Doubles:
    along: Doubles = (
        ratios_G - (advantages_G @ ratios_G) / (advantages_G @ advantages_G) * advantages_G
    )
    return along


def with_trajectory_weights(
    rows: Sequence[Row], logprobs: Sequence[Floats | None], name: str
) -> list[Row]:
    """The rows of a step with signal, their tokens weighed by w~ on top of what credit gave them.

    `logprobs` [T] a row are those of the step's weights; None: these weights sampled the row.
    """
    rule = TRAJECTORY_WEIGHTS.load(name)
    ratios_R = np.ones(len(rows))
    for i, (row, now_T) in enumerate(zip(rows, logprobs, strict=True)):
        if now_T is not None:
            ratios_R[i] = np.exp(np.mean(now_T - row.old_logprobs, dtype=np.float64))
    members: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        members.setdefault(row.group, []).append(i)
    done = list(rows)
    for group in members.values():
        advantages_G = np.array([rows[i].advantage for i in group])
        for i, weight in zip(group, rule(ratios_R[group], advantages_G), strict=True):
            ones = np.ones(rows[i].num_tokens, dtype=np.float32)
            given_T = ones if rows[i].weights_T is None else rows[i].weights_T
            done[i] = replace(rows[i], weights_T=(weight * given_T).astype(np.float32))
    return done
